//! `sandkeep shell`: an interactive shell in a sandbox, in this terminal.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::terminal::{self, Typing};
use sandkeep_client::Client;

/// Open a shell in a sandbox, in this terminal
///
/// It is bash where there is one, else sh. Its exit code becomes that of this command. If this command
/// or its connection ends first, so does the shell.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The working directory [default: the image's, else the user's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Who runs it: a name or uid, and maybe :group or :gid [default: the image's, else user]
    #[arg(long, short = 'u', value_name = "USER")]
    user: Option<String>,
    /// The sandbox's id, or the beginning of it
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
    query.extend(args.cwd.map(|cwd| ("cwd", cwd)));
    query.extend(args.user.map(|user| ("user", user)));
    let socket = client.websocket(&format!("/api/v1/sandboxes/{id}/terminal"), &query).await?;
    terminal::lend(client, socket, Typing::Yes).await
}
