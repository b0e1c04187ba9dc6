//! The rows of `[flex]` and `[agentfense]`.

use serde_json::json;

use super::{Setting, Shape, value};

pub static FLEX: &[Setting] = &[
    Setting::new(
        "flex.listen",
        Shape::Text,
        "ADDR:PORT",
        "Address and port for Flex's clients alone, besides `listen`, where they are answered, too",
        set!(flex.listen, |text| value::parsed(text, "ADDRESS:PORT such as 127.0.0.1:4600")
            .map(Some)),
        show!(flex.listen),
    ),
    Setting::new(
        "flex.advertise_addr",
        Shape::Text,
        "ADDR",
        "Address of this machine on which processes launched by Flex's clients are reached. On loopback only the daemon's user can connect; on any other address everybody can, so such a process must ask for credentials",
        set!(flex.advertise_addr, |text| value::parsed(text, "an IP address such as 127.0.0.1")),
        show!(flex.advertise_addr),
    ),
];

pub static AGENTFENSE: &[Setting] = &[
    Setting::new(
        "agentfense.grpc",
        Shape::Text,
        "ADDR:PORT",
        "Address and port for AgentFense's clients over gRPC: 127.0.0.1:9000; not served without one",
        set!(agentfense.grpc, |text| value::parsed(text, "ADDRESS:PORT such as 127.0.0.1:9000")
            .map(Some)),
        show!(agentfense.grpc),
    ),
    Setting::new(
        "agentfense.rest",
        Shape::Text,
        "ADDR:PORT",
        "Address and port for AgentFense's JSON over HTTP: 127.0.0.1:8080; not served without one",
        set!(agentfense.rest, |text| value::parsed(text, "ADDRESS:PORT such as 127.0.0.1:8080")
            .map(Some)),
        show!(agentfense.rest),
    ),
];
