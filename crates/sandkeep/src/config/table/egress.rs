//! The rows about the networks of sandboxes.

use serde_json::json;

use super::{Setting, Shape, value};

pub static EGRESS: &[Setting] = &[
    Setting::new(
        "egress_ceiling",
        Shape::Text,
        "NETWORK",
        "The widest network that a sandbox may ask for: none, open, entries such as python,*.example.com, or a policy as JSON [default: no ceiling]",
        set!(egress.ceiling, |text| value::network(text).map(Some)),
        show!(egress.ceiling),
    ),
    Setting::new(
        "egress_allow_ranges",
        Shape::List,
        "RANGES",
        "Addresses that sandboxes may reach, if their policies allow it, although they are not public: 10.1.0.0/16, 127.0.0.1",
        set!(egress.allow_ranges, value::ip_ranges),
        show!(egress.allow_ranges),
    ),
    Setting::new(
        "egress_presets",
        Shape::Text,
        "FILE",
        "JSON file with network presets, added to the built-in ones or in their place: {\"corp\": [\"git.corp.example\", \"*.pkg.corp.example\"]}",
        set!(egress.presets, |text| value::path(text).map(Some)),
        show!(egress.presets),
    ),
    Setting::new(
        "egress_ca",
        Shape::Text,
        "FILE",
        "PEM file with certificates to trust for hosts whose requests the daemon reads, in addition to the system's",
        set!(egress.ca, |text| value::path(text).map(Some)),
        show!(egress.ca),
    ),
    Setting::new(
        "egress_hosts",
        Shape::Text,
        "FILE",
        "File like /etc/hosts with the only host names that sandboxes can reach; no resolver is asked",
        set!(egress.hosts, |text| value::path(text).map(Some)),
        show!(egress.hosts),
    ),
    Setting::new(
        "egress_kms_command",
        Shape::Text,
        "PROGRAM",
        "Program that wraps the key for the secrets of sandboxes: called with encrypt or decrypt, from stdin to stdout [default: a key file in the data directory]",
        set!(egress.kms_command, |text| value::path(text).map(Some)),
        show!(egress.kms_command),
    ),
];
