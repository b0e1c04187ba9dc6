//! The rows of commands over NATS and of `[purista]`.

use serde_json::json;

use super::super::commands::{accounts, inboxes};
use super::{Setting, Shape, value};

pub static COMMANDS: &[Setting] = &[
    Setting::new(
        "nats.commands",
        Shape::Switch,
        "BOOL",
        "Answer commands over NATS: PREFIX.v1.VERB, the API as a NATS micro service",
        set!(commands.enabled, value::switch),
        show!(commands.enabled),
    ),
    Setting::new(
        "nats.inboxes",
        Shape::List,
        "SUBJECTS",
        "What the reply subjects of commands may begin with; commands that want their reply elsewhere are ignored",
        set!(commands.inboxes, inboxes),
        show!(commands.inboxes),
    )
    .default("_INBOX and _R_, which clients and imports of other accounts use"),
    Setting::new(
        "nats.accounts",
        Shape::List,
        "ACCOUNTS",
        "Accounts whose commands need no credentials: NAME=ORGANIZATION/USER or NAME=ORGANIZATION/USER/PROJECT; they arrive at PREFIX.accounts.NAME.v1.VERB",
        set!(commands.accounts, accounts),
        |of| json!(of.commands.accounts.iter().map(|account| account.text()).collect::<Vec<_>>()),
    ),
];

pub static PURISTA: &[Setting] = &[
    Setting::new(
        "purista.enabled",
        Shape::Switch,
        "BOOL",
        "Offer PURISTA's Sandbox service on NATS; needs purista.trust",
        set!(purista.enabled, value::switch),
        show!(purista.enabled),
    ),
    Setting::new(
        "purista.trust",
        Shape::Text,
        "TRUST",
        "nats-permissions: the NATS server lets only trusted services publish PURISTA commands, which name any tenant",
        set!(purista.trust, |text| value::purista_trust(text).map(Some)),
        |of| json!(of.purista.trust.map(|trust| trust.as_str())),
    ),
    Setting::new(
        "purista.prefix",
        Shape::Text,
        "SUBJECT",
        "First token of PURISTA's subjects",
        set!(purista.prefix, value::subject_prefix),
        show!(purista.prefix),
    ),
];
