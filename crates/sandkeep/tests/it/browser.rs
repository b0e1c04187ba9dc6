//! A real browser visits pages of a sandbox, as the user who runs the daemon, whose every request the API would obey.
//! Everything that an attacker's pages try must fail.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon;
use crate::ports::{PORT, Site};
use crate::skip_if;
use crate::support::{Patience, until_some};

const ATTACK: &str = include_str!("browser/attack.html");
const EVIL: &str = include_str!("browser/evil.html");
const VISIT: &str = include_str!("browser/visit.html");

/// A user for whom nothing speaks.
const STRANGER: u32 = 65_534;

fn no_browser() -> Option<&'static str> {
    let found = Command::new("chromium").arg("--version").output();
    match found {
        Ok(output) if output.status.success() => None,
        Ok(_) | Err(_) => Some("needs chromium"),
    }
}

/// A browser with one page open; it is closed when this is dropped.
struct Browser {
    process: Child,
    _profile: TempDir,
}

impl Browser {
    fn open(url: &str, uid: u32) -> Self {
        let profile = TempDir::with_prefix("sandkeep-it-browser-").expect("a temp dir");
        chown(profile.path(), Some(uid), Some(uid)).expect("root can give it away");
        let process = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--no-proxy-server", "--disable-background-networking"])
            .args(["--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .env("HOME", profile.path())
            .uid(uid)
            .gid(uid)
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium starts");
        Self { process, _profile: profile }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // With all its helpers, which are in its group.
        let group = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.process.wait();
    }
}

impl Site<'_> {
    /// Puts a page where the server finds it, with the places in it filled in.
    fn put(&self, name: &str, page: &str) {
        let api = self.daemon.address().port().to_string();
        let page = page.replace("@API_PORT@", &api).replace("@ID@", &self.id);
        let body = json!({ "command": format!("cat > {name}"), "stdin": page });
        self.daemon.exec(&self.id, &body).ok();
    }

    /// What the pages reported, when there are so many reports.
    fn reports(&self, count: usize) -> Vec<Value> {
        until_some("the page has reported", Patience::Long, || {
            let reports = self.get(PORT, "/report", "").json();
            let reports = reports.as_array().expect("reports").clone();
            let parse = |report: &Value| {
                let text = report.as_str().expect("text");
                serde_json::from_str(text).unwrap_or_else(|_| json!(text))
            };
            (reports.len() >= count).then(|| reports.iter().map(parse).collect())
        })
    }
}

#[test]
fn a_page_of_a_sandbox_cannot_drive_the_api_with_its_visitors_rights() {
    skip_if!(no_browser());
    let daemon = daemon!();
    let site = Site::open(&daemon);
    site.put("attack.html", ATTACK);
    site.put("evil.html", EVIL);
    let own = rustix::process::geteuid().as_raw();
    {
        let _browser = Browser::open(&format!("http://{}/files/attack.html", site.host(PORT)), own);
        let report = &site.reports(1)[0];
        let tried = report["tried"].as_object().expect("what was tried");
        assert!(tried.len() >= 8, "not all was tried: {report:#}");
        for (attack, came_of_it) in tried {
            assert_eq!(came_of_it, "nothing", "{attack}: {report:#}");
        }
        assert_eq!(report["own_server"], "reached", "the page itself could not work: {report:#}");
        assert_eq!(report["websocket"], "hello echo", "{report:#}");
    }
    assert_eq!(daemon.ids(), [site.id.as_str()], "a page made or destroyed a sandbox");

    // A link to the same page on the API's own origin leads to the port's host, where it has no power.
    {
        let url = format!(
            "http://127.0.0.1:{}{}",
            daemon.address().port(),
            site.path("/files/evil.html")
        );
        let _browser = Browser::open(&url, own);
        let report = &site.reports(2)[1];
        assert_eq!(report["host"], site.host(PORT), "{report:#}");
    }
    assert_eq!(daemon.ids(), [site.id.as_str()], "a page made or destroyed a sandbox");
}

#[test]
fn a_signed_url_opens_a_site_in_the_browser_of_anybody() {
    skip_if!(no_browser());
    let daemon = daemon!();
    let site = Site::open(&daemon);
    site.put("visit.html", VISIT);
    let signed = daemon.expect(200, "POST", &site.path("/url"), &Value::Null);
    let url = signed["url"].as_str().expect("a URL").replace("/?", "/files/visit.html?");
    let _browser = Browser::open(&url, STRANGER);
    let report = &site.reports(1)[0];
    assert_eq!(report["search"], "", "the token is gone from the address: {report:#}");
    assert_eq!(report["cookies"], "", "a page cannot read its pass: {report:#}");
    assert_eq!(report["seen_cookies"], json!([]), "nor can its server: {report:#}");
    assert_eq!(report["websocket"], "hello echo", "{report:#}");
}
