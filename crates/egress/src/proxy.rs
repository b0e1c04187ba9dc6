//! The HTTP proxy that a sandbox sees, for programs that are told to use one. It decides as for direct connections, and
//! after CONNECT a connection is carried like any other.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, upgrade};
use hyper_util::rt::TokioIo;

use crate::carry::carry;
use crate::connection::{Flow, Refusal, Site};
use crate::http::{Body, HostAndPort, Session, TunnelSlot, authority, refusal, serve_http1};
use crate::policy::{Host, Transport};
use crate::stream::Stream;

/// The site that the last request was for.
type Current = tokio::sync::Mutex<Option<Arc<Session>>>;

pub(crate) async fn serve(flow: Flow, inside: Stream) {
    let (tunnel, current) = (TunnelSlot::default(), Arc::new(Current::default()));
    let (of, slot) = (flow.clone(), tunnel.clone());
    serve_http1(&flow, inside, tunnel, move |request| {
        let (flow, tunnel, current) = (of.clone(), slot.clone(), Arc::clone(&current));
        async move {
            if *request.method() == Method::CONNECT {
                connect(flow, tunnel, request).await
            } else {
                forward(flow, tunnel, &current, request).await
            }
        }
    })
    .await;
}

/// Where a request wants to go.
fn target(flow: &Flow, text: &str) -> Result<HostAndPort, Refusal> {
    let found = authority(text);
    let found = found.ok_or_else(|| Refusal::because("its target is not a host and a port"))?;
    let host = match found.host {
        Host::Address(address) => flow.host(address)?,
        name => name,
    };
    Ok(HostAndPort { host, port: found.port })
}

async fn connect(flow: Flow, tunnel: TunnelSlot, request: Request<Incoming>) -> Response<Body> {
    let text = request.uri().authority().map(|target| target.as_str().to_owned());
    let target = match target(&flow, text.as_deref().unwrap_or_default()) {
        Ok(target) => target,
        Err(refusal) => return refusal::unsupported(&refusal.reason),
    };
    let Some(port) = target.port else {
        return refusal::unsupported("CONNECT needs a port: CONNECT host:443");
    };
    let site = match flow.decide(&target.host, port).await {
        Ok(site) => site,
        Err(refusal) => return refusal::response(&flow, (&target.host, port), &refusal, None),
    };
    tunnel.put(Box::pin(async move {
        if let Ok(inside) = upgrade::on(request).await {
            carry(flow, Box::new(TokioIo::new(inside)), site).await;
        }
    }));
    Response::new(Body::Right(Full::default()))
}

async fn forward(
    flow: Flow,
    tunnel: TunnelSlot,
    current: &Current,
    request: Request<Incoming>,
) -> Response<Body> {
    let uri = request.uri();
    let (Some("http"), Some(text)) = (uri.scheme_str(), uri.authority()) else {
        return refusal::unsupported(
            "this is an HTTP proxy: send the whole URL of an http request, and CONNECT for https",
        );
    };
    let HostAndPort { host, port } = match target(&flow, text.as_str()) {
        Ok(target) => target,
        Err(refusal) => return refusal::unsupported(&refusal.reason),
    };
    let port = port.unwrap_or(80);
    let mut current = current.lock().await;
    let same = |session: &&Arc<Session>| is_for(&session.site, &host, port);
    let session = match current.as_ref().filter(same) {
        Some(session) => Arc::clone(session),
        None => match flow.decide(&host, port).await {
            Ok(site) => {
                flow.reads();
                Arc::new(Session::new(flow, site, Transport::Plain, tunnel))
            }
            Err(refusal) => return refusal::response(&flow, (&host, port), &refusal, None),
        },
    };
    *current = Some(Arc::clone(&session));
    drop(current);
    session.answer(request).await
}

fn is_for(site: &Site, host: &Host, port: u16) -> bool {
    site.host == *host && site.port == port
}
