//! Persistent shells, each promise for `sh` and for `bash`.

mod between;
mod endings;
mod interrupted;
mod keeping;

use std::sync::Arc;
use std::time::Duration;

use sandkeep_core::{ExecId, Privilege, ShellId};
use sandkeep_guestlink::*;

use crate::harness::*;

/// A guest with one open shell.
pub struct TestShell {
    pub guest: TestGuest,
    pub id: ShellId,
}

pub const BOTH: [ShellProgram; 2] = [ShellProgram::Sh, ShellProgram::Bash];

pub fn shell_request(program: Option<ShellProgram>) -> ShellRequest {
    let command = command(&["unused"]);
    ShellRequest {
        id: ShellId::random(),
        program,
        env: command.env,
        cwd: command.cwd,
        user: "1234:5678".to_owned(),
        privilege: Privilege::None,
    }
}

impl TestShell {
    pub async fn open(program: ShellProgram) -> Self {
        Self::open_with(Arc::new(NoLeaves), program).await
    }

    pub async fn open_with(pool: Arc<dyn LeafPool>, program: ShellProgram) -> Self {
        let guest = TestGuest::start_with(pool);
        let request = shell_request(Some(program));
        let id = request.id.clone();
        let opened = guest.client.open_shell(request).await.unwrap();
        assert_eq!((opened.program, opened.state), (program, ShellState::Ready));
        Self { guest, id }
    }

    pub fn command(&self, command: &str) -> ShellExecRequest {
        ShellExecRequest {
            id: ExecId::random(),
            shell: self.id.clone(),
            command: command.to_owned(),
            stdin: Stdin::Null,
            timeout: None,
        }
    }

    pub async fn begin(&self, command: &str) -> Execution {
        self.guest.client.exec_in_shell(self.command(command)).await.unwrap()
    }

    pub async fn run(&self, command: &str) -> Collected {
        collect(&mut self.begin(command).await).await
    }

    pub async fn run_for(&self, command: &str, timeout: Duration) -> Collected {
        let request = ShellExecRequest { timeout: Some(timeout), ..self.command(command) };
        collect(&mut self.guest.client.exec_in_shell(request).await.unwrap()).await
    }

    pub async fn run_with_stdin(&self, command: &str, stdin: &[u8]) -> Collected {
        let request = ShellExecRequest { stdin: Stdin::Piped, ..self.command(command) };
        let mut execution = self.guest.client.exec_in_shell(request).await.unwrap();
        let input = execution.input();
        let feeding = async {
            // A command need not read what it is given.
            let _ = input.write(stdin).await;
            let _ = input.close().await;
        };
        tokio::join!(collect(&mut execution), feeding).0
    }

    /// Runs a command that succeeds and keeps the shell; what it has said.
    pub async fn says(&self, command: &str) -> String {
        let ran = self.run(command).await;
        assert_eq!(ran.fate(), (Outcome::Exited(0), ShellFate::Kept), "{command}: {ran:?}");
        ran.out()
    }

    pub async fn state(&self) -> ShellState {
        let shells = self.guest.client.shells().await.unwrap();
        shells.iter().find(|shell| shell.id == self.id).unwrap().state
    }
}

impl Collected {
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn fate(&self) -> (Outcome, ShellFate) {
        let shell = self.end.shell.expect("the end of a command says what became of its shell");
        (self.end.outcome, shell.fate)
    }
}
