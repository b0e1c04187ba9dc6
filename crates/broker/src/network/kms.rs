//! A command that keeps the key for secrets: `PROGRAM encrypt` and `PROGRAM decrypt`, each from stdin to stdout. The
//! output of the first is stored; the second gets it when the key is needed for the first time.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use sandkeep_core::limits;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsCommand(pub PathBuf);

/// Why the command gave no key.
#[derive(Debug, thiserror::Error)]
#[error("the KMS command {} {verb} failed: {problem}", program.display())]
pub(super) struct KmsError {
    program: PathBuf,
    verb: &'static str,
    problem: KmsProblem,
}

#[derive(Debug, thiserror::Error)]
enum KmsProblem {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}; its messages are in the daemon's log")]
    Exit(ExitStatus),
    #[error("it took more than {} s", limits::KMS_ANSWER.as_secs())]
    TookTooLong,
    #[error("it printed nothing")]
    Silent,
    #[error("it printed more than {} bytes", limits::KMS_ANSWER_MAX_BYTES)]
    TooMuch,
}

impl KmsCommand {
    pub(super) async fn encrypt(&self, key: &[u8]) -> Result<Vec<u8>, KmsError> {
        self.run("encrypt", key).await
    }

    pub(super) async fn decrypt(&self, wrapped: &[u8]) -> Result<Vec<u8>, KmsError> {
        self.run("decrypt", wrapped).await
    }

    async fn run(&self, verb: &'static str, input: &[u8]) -> Result<Vec<u8>, KmsError> {
        let ran = timeout(limits::KMS_ANSWER, self.answer(verb, input)).await;
        let ran = ran.unwrap_or(Err(KmsProblem::TookTooLong));
        ran.map_err(|problem| KmsError { program: self.0.clone(), verb, problem })
    }

    async fn answer(&self, verb: &str, input: &[u8]) -> Result<Vec<u8>, KmsProblem> {
        let mut child = Command::new(&self.0)
            .arg(verb)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // It may need no input, and say so by closing it.
                let _ = stdin.write_all(input).await;
            }
        };
        let read = async {
            let mut answer = Vec::new();
            if let Some(stdout) = stdout {
                let max = limits::KMS_ANSWER_MAX_BYTES as u64 + 1;
                stdout.take(max).read_to_end(&mut answer).await?;
            }
            Ok::<_, KmsProblem>(answer)
        };
        let ((), answer) = tokio::join!(write, read);
        let answer = answer?;
        if answer.len() > limits::KMS_ANSWER_MAX_BYTES {
            return Err(KmsProblem::TooMuch);
        }
        let status = child.wait().await?;
        match (status.success(), answer.is_empty()) {
            (true, false) => Ok(answer),
            (true, true) => Err(KmsProblem::Silent),
            (false, _) => Err(KmsProblem::Exit(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn command(dir: &std::path::Path, script: &str) -> KmsCommand {
        let path = dir.join("kms");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        KmsCommand(path)
    }

    fn said(answer: &Result<Vec<u8>, KmsError>, words: &str) -> bool {
        answer.as_ref().is_err_and(|error| error.to_string().contains(words))
    }

    #[tokio::test]
    async fn what_was_encrypted_is_decrypted_and_a_failure_says_what_failed() {
        let dir = tempfile::tempdir().expect("a directory");
        let kms = command(dir.path(), "[ $1 = encrypt ] && exec base64 -w0; exec base64 -d");
        let wrapped = kms.encrypt(b"key").await.expect("it works");
        assert_eq!(wrapped, b"a2V5");
        assert_eq!(kms.decrypt(&wrapped).await.expect("it works"), b"key");
        let failing = command(dir.path(), "cat > /dev/null; exit 3").encrypt(b"key").await;
        assert!(said(&failing, "exit status: 3"), "{failing:?}");
        let silent = command(dir.path(), "exit 0").decrypt(b"x").await;
        assert!(said(&silent, "printed nothing"), "{silent:?}");
        let missing = KmsCommand("/nowhere/kms".into()).encrypt(b"key").await;
        assert!(said(&missing, "/nowhere/kms"), "{missing:?}");
    }
}
