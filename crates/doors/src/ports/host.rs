//! Host names of ports: `<port>-<sandbox>.<domain>`, optionally with the daemon's own port.

use axum::http::{HeaderMap, Uri, header};

use sandkeep_core::{Port, SandboxId};

/// A host name of a sandbox port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortHost {
    pub port: Port,
    pub sandbox: SandboxId,
    /// As the client wrote it, in lower case, including the port if any.
    pub authority: String,
}

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addressed {
    /// A port of a sandbox.
    Port(PortHost),
    /// Something else; the API decides whether it is the target.
    Elsewhere,
    /// Two different targets, one of them a port.
    Unclear { host: String },
}

/// Determines the target of a request. A request that names a port anywhere must not name anything else, because a
/// component that checks the other name would be misled.
pub fn addressed(headers: &HeaderMap, uri: &Uri, domain: &str) -> Addressed {
    let lower = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let mut names: Vec<String> =
        headers.get_all(header::HOST).iter().map(|host| lower(host.as_bytes())).collect();
    names.extend(uri.authority().map(|authority| lower(authority.as_str().as_bytes())));
    let Some(port_host) = names.iter().find_map(|name| PortHost::parse(name, domain)) else {
        return Addressed::Elsewhere;
    };
    let hosts = headers.get_all(header::HOST).iter().count();
    if hosts == 1 && names.iter().all(|name| *name == port_host.authority) {
        Addressed::Port(port_host)
    } else {
        Addressed::Unclear { host: names.join(", ") }
    }
}

impl PortHost {
    /// `authority` must be in lower case.
    pub fn parse(authority: &str, domain: &str) -> Option<Self> {
        let (name, daemon_port) = match authority.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (authority, None),
        };
        if daemon_port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return None;
        }
        // The trailing dot of the DNS root means the same host.
        let name = name.strip_suffix('.').unwrap_or(name);
        let label = name.strip_suffix(domain)?.strip_suffix('.')?;
        let (port, sandbox) = label.split_once('-')?;
        Some(Self {
            port: port.parse().ok()?,
            sandbox: sandbox.parse().ok()?,
            authority: authority.to_owned(),
        })
    }

    /// The host name of a port, with the daemon port that the client used in `host`.
    pub fn of(sandbox: &SandboxId, port: Port, domain: &str, host: Option<&str>) -> Self {
        let authority = format!("{port}-{}", Self::base(sandbox, domain, host));
        Self { port, sandbox: sandbox.clone(), authority }
    }

    /// The common suffix of all port host names of a sandbox.
    pub fn base(sandbox: &SandboxId, domain: &str, host: Option<&str>) -> String {
        let daemon_port = host.and_then(|host| {
            // `[::1]` contains colons.
            let (_, port) = host.rsplit_once(':')?;
            port.parse::<u16>().ok()
        });
        let daemon_port = daemon_port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{sandbox}.{domain}{daemon_port}")
    }

    /// Whether an `Origin` is a page of the same sandbox, on this or another port.
    pub fn is_kin(&self, origin: &str, domain: &str) -> bool {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority
            .and_then(|authority| Self::parse(authority, domain))
            .is_some_and(|other| other.sandbox == self.sandbox)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const ID: &str = "sbaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn of(hosts: &[&str], uri: &str) -> Addressed {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).expect("a header"));
        }
        addressed(&headers, &uri.parse().expect("a URI"), "localhost")
    }

    #[test]
    fn a_port_is_told_by_its_name_alone() {
        for host in ["8080-ID.localhost", "8080-ID.localhost:4500", "8080-ID.LocalHost.:4500"] {
            let Addressed::Port(found) = of(&[&host.replace("ID", ID)], "/x") else {
                panic!("{host} was not taken for a port");
            };
            assert_eq!((found.port.get(), found.sandbox.as_str()), (8080, ID));
        }
        for host in [
            "localhost",
            "localhost:4500",
            "ID.localhost",
            "8080-.localhost",
            "08080-ID.localhost",
            "0-ID.localhost",
            "8080-ID.localhost:x",
            "8080-ID.localhost.example",
            "8080-ID.other",
            "a.8080-ID.localhost",
            "8080-IDa.localhost",
        ] {
            assert_eq!(of(&[&host.replace("ID", ID)], "/"), Addressed::Elsewhere, "{host}");
        }
    }

    #[test]
    fn a_request_that_names_a_port_and_something_else_is_for_nobody() {
        let port = format!("80-{ID}.localhost");
        for (hosts, uri) in [
            (&[port.as_str(), "localhost"][..], "/"),
            (&[port.as_str(), port.as_str()][..], "/"),
            (&[port.as_str()][..], "http://localhost/api/v1/sandboxes"),
            (&["localhost"][..], &format!("http://{port}/")),
            (&[][..], &format!("http://{port}/")),
        ] {
            assert!(matches!(of(hosts, uri), Addressed::Unclear { .. }), "{hosts:?} {uri}");
        }
        let whole = format!("http://{port}/x");
        assert!(matches!(of(&[&port], &whole), Addressed::Port(_)));
    }

    #[test]
    fn only_pages_of_the_same_sandbox_are_kin() {
        let host = PortHost::parse(&format!("80-{ID}.localhost:4500"), "localhost").expect("one");
        assert!(host.is_kin(&format!("http://3000-{ID}.localhost:4500"), "localhost"));
        let other = SandboxId::random();
        for origin in
            [&format!("http://80-{other}.localhost:4500"), "null", "http://localhost:4500", ""]
        {
            assert!(!host.is_kin(origin, "localhost"), "{origin}");
        }
    }
}
