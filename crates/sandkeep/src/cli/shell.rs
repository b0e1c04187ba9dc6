//! `sandkeep shell`: an interactive shell in a sandbox, on this terminal.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::terminal::{self, Typing};
use sandkeep_client::Client;

/// Open a shell in a sandbox, in this terminal
///
/// Exits with the shell's exit code. The shell ends when this command exits or disconnects.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to run, by name or path [default: bash if the sandbox has it, else sh]
    #[arg(long, value_name = "PROGRAM")]
    shell: Option<String>,
    /// Working directory [default: from the image, else the user's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// User name or uid, optionally with :group or :gid [default: from the image, else `user`]
    #[arg(long, short = 'u', value_name = "USER")]
    user: Option<String>,
    /// Sandbox name, id or unique prefix of an id
    id: String,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    terminal::must_be_terminal("use `sandkeep exec` to run a command without one")?;
    let id = client.resolve(&args.id).await?;
    let size = terminal::size();
    let mut query = vec![
        ("rows", size.rows.to_string()),
        ("cols", size.cols.to_string()),
        ("on_disconnect", "kill".to_owned()),
    ];
    query.extend(terminal::kind().map(|term| ("term", term)));
    // The terminal's command is a line for sh.
    let quoted = |program: String| format!("exec '{}'", program.replace('\'', r"'\''"));
    query.extend(args.shell.map(|program| ("command", quoted(program))));
    query.extend(args.cwd.map(|cwd| ("cwd", cwd)));
    query.extend(args.user.map(|user| ("user", user)));
    let socket = client.websocket(&format!("/api/v1/sandboxes/{id}/terminal"), &query).await?;
    terminal::lend(client, socket, Typing::Yes).await
}
