//! A command that keeps the key for secrets: `PROGRAM encrypt` and `PROGRAM decrypt`, each from stdin to stdout. What
//! the first prints is stored; the second gets it when the key is needed for the first time.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use sandkeep_core::limits;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsCommand(pub PathBuf);

impl KmsCommand {
    pub(super) async fn encrypt(&self, key: &[u8]) -> Result<Vec<u8>, String> {
        self.run("encrypt", key).await
    }

    pub(super) async fn decrypt(&self, wrapped: &[u8]) -> Result<Vec<u8>, String> {
        self.run("decrypt", wrapped).await
    }

    async fn run(&self, verb: &str, input: &[u8]) -> Result<Vec<u8>, String> {
        let name = self.0.display();
        let ran = timeout(limits::KMS_ANSWER, self.answer(verb, input)).await;
        let secs = limits::KMS_ANSWER.as_secs();
        let ran = ran.unwrap_or_else(|_| Err(format!("it took more than {secs} s")));
        ran.map_err(|problem| format!("the KMS command {name} {verb} failed: {problem}"))
    }

    async fn answer(&self, verb: &str, input: &[u8]) -> Result<Vec<u8>, String> {
        let told = |error: std::io::Error| error.to_string();
        let mut child = Command::new(&self.0)
            .arg(verb)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(told)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // It may need no input, and say so by closing it.
                let _ = stdin.write_all(input).await;
            }
        };
        let read = async {
            let mut answer = Vec::new();
            let Some(stdout) = stdout else { return Ok(answer) };
            let max = limits::KMS_ANSWER_MAX_BYTES as u64 + 1;
            stdout.take(max).read_to_end(&mut answer).await.map(|_| answer).map_err(told)
        };
        let ((), answer) = tokio::join!(write, read);
        let answer = answer?;
        if answer.len() > limits::KMS_ANSWER_MAX_BYTES {
            return Err(format!("it printed more than {} bytes", limits::KMS_ANSWER_MAX_BYTES));
        }
        let status = child.wait().await.map_err(told)?;
        match (status.success(), answer.is_empty()) {
            (true, false) => Ok(answer),
            (true, true) => Err("it printed nothing".to_owned()),
            (false, _) => Err(format!("{status}; its messages are in the daemon's log")),
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

    #[tokio::test]
    async fn what_was_encrypted_is_decrypted_and_a_failure_says_what_failed() {
        let dir = tempfile::tempdir().expect("a directory");
        let kms = command(dir.path(), "[ $1 = encrypt ] && exec base64 -w0; exec base64 -d");
        let wrapped = kms.encrypt(b"key").await.expect("it works");
        assert_eq!(wrapped, b"a2V5");
        assert_eq!(kms.decrypt(&wrapped).await.expect("it works"), b"key");
        let failing = command(dir.path(), "cat > /dev/null; exit 3").encrypt(b"key").await;
        assert!(failing.as_ref().is_err_and(|why| why.contains("exit status: 3")), "{failing:?}");
        let silent = command(dir.path(), "exit 0").decrypt(b"x").await;
        assert!(silent.as_ref().is_err_and(|why| why.contains("printed nothing")), "{silent:?}");
        let missing = KmsCommand("/nowhere/kms".into()).encrypt(b"key").await;
        assert!(missing.as_ref().is_err_and(|why| why.contains("/nowhere/kms")), "{missing:?}");
    }
}
