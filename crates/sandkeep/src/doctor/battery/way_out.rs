//! A temporary sandbox with a way out, which leads to one name: the bait's listener on the host's loopback. The gateway is
//! the daemon's own, with a list of hosts in which there is nothing else.

use probe::Attempt;

use super::bait::Bait;
use super::subject::{TestSandbox, Who};
use super::tally::Tally;
use super::{BatteryError, TestBroker};
use sandkeep_broker::error::Error;
use sandkeep_core::Privilege;
use sandkeep_core::network::{Network, Policy};
use sandkeep_home::Verdict;
use sandkeep_runtime::RuntimeError;

/// The host that may be reached.
pub const ALLOWED: &str = "allowed.sandkeep-probe.test";

/// What only such a sandbox can try, or what holds in it for other reasons than elsewhere.
const ATTEMPTS: [Attempt; 8] = [
    Attempt::GatewayNames,
    Attempt::GatewayAddresses,
    Attempt::GatewayProxy,
    Attempt::GatewayDatagrams,
    Attempt::RawSocket,
    Attempt::NetworkRules,
    Attempt::TransparentSocket,
    Attempt::ListenerPort,
];

pub async fn examine(
    ward: &TestBroker,
    runtime: &str,
    tally: &mut Tally,
) -> Result<(), BatteryError> {
    let mut bait = Bait::lay(Vec::new()).await.map_err(BatteryError::Bait)?;
    let entry = format!("{ALLOWED}:{}", bait.port());
    let allow = vec![entry.parse().expect("a name and a port")];
    let network = Some(Network::Policy(Policy { allow, ..Policy::default() }));
    let subject = TestSandbox::create(ward, runtime, Privilege::None, None, network).await;
    let subject = match subject {
        // Its attempts say by themselves that there is no way out.
        Err(Error::Runtime(RuntimeError::Unsupported { .. })) => return Ok(()),
        subject => subject?,
    };
    let tried = try_all(&subject, &mut bait, tally).await;
    subject.destroy().await?;
    tried
}

async fn try_all(
    subject: &TestSandbox<'_>,
    bait: &mut Bait,
    tally: &mut Tally,
) -> Result<(), BatteryError> {
    subject.bring_probe().await?;
    let names = ATTEMPTS.map(Attempt::name).join(":");
    let mut arguments = bait.arguments(None);
    arguments.extend([format!("allowed={ALLOWED}"), format!("only={names}")]);
    for who in [Who::User, Who::Root] {
        let said = subject.probe(who, &arguments).await?;
        tally.take_some(who, &said, |attempt| ATTEMPTS.contains(&attempt));
    }
    if let Some((attempt, what)) = bait.harm() {
        tally.note(attempt, Verdict::Leaked, format!("with a way out: {what}"));
    }
    Ok(())
}
