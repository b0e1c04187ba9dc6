//! One entry of a policy. It is written as text, or as an object where it also has rules for requests.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::host::{canonical, host_name, network_address};
use super::presets::is_preset_name;
use super::requests::{InvalidRequests, Requests, RequestsDraft};
use crate::limits;

/// A destination, and which requests may go there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub target: Target,
    /// Without them every connection to the target passes as it is.
    pub requests: Option<Requests>,
}

/// Destinations. Without a port, an entry of `allow` means ports 80 and 443, and one of `deny` means all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// The entries of a preset.
    Preset(String),
    /// Every public destination, on every port.
    Any,
    Name {
        host: String,
        port: Option<u16>,
    },
    /// All names that end in `.suffix`, but not `suffix` itself.
    Below {
        suffix: String,
        port: Option<u16>,
    },
    Range {
        range: IpRange,
        port: Option<u16>,
    },
}

/// Addresses with a common prefix. IPv4 addresses are never in their IPv6 form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IpRange {
    address: IpAddr,
    prefix: u8,
}

/// Text that is no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("network entry {entry:?}: {problem}")]
pub struct InvalidEntry {
    /// As it was written, at most as long as an entry can be.
    pub entry: String,
    pub problem: EntryProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    #[error("it is empty")]
    Empty,
    #[error("it is too long for a host name")]
    TooLong,
    #[error("write the name in its ASCII form, which begins with xn--")]
    NotAscii,
    #[error(
        "{0:?} is not a part of a host name; write host, *.host, host:port, an address or the name of a preset"
    )]
    Label(String),
    #[error("write an IPv4 address as four decimal numbers")]
    AddressNotation,
    #[error("it is a URL; write its host, such as {0:?}")]
    Url(String),
    #[error("{0:?} is not a port from 1 to 65535")]
    Port(String),
    #[error("a name without a dot is a preset, and a preset has no port")]
    PresetPort,
    #[error("a preset has lower case letters, digits and hyphens")]
    PresetName,
    #[error("`*` is allowed alone, or as the first part of a name: *.example.com")]
    Wildcard,
    #[error("{0:?} is not the length of a prefix")]
    Prefix(String),
    #[error("the address has bits after its prefix; write {0}")]
    HostBits(IpRange),
    #[error("rules for requests need a host name or *.name")]
    RequestsNeedName,
    #[error(transparent)]
    Requests(#[from] InvalidRequests),
}

impl Entry {
    pub fn of(target: Target) -> Self {
        Self { target, requests: None }
    }
}

impl IpRange {
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, EntryProblem> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            return Err(EntryProblem::Prefix(prefix.to_string()));
        }
        let (address, prefix) = canonical(address, prefix);
        let network = network_address(address, prefix);
        if network != address {
            return Err(EntryProblem::HostBits(Self { address: network, prefix }));
        }
        Ok(Self { address, prefix })
    }

    /// One address.
    pub fn of(address: IpAddr) -> Self {
        let (address, prefix) = canonical(address, if address.is_ipv4() { 32 } else { 128 });
        Self { address, prefix }
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// An IPv4 address in its IPv6 form counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && network_address(address, self.prefix) == self.address
    }

    /// Whether every address of the other is in this one.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }
}

impl FromStr for IpRange {
    type Err = InvalidEntry;

    fn from_str(text: &str) -> Result<Self, InvalidEntry> {
        match range(text) {
            Ok(Some(range)) => Ok(range),
            Ok(None) => Err(invalid(text, EntryProblem::AddressNotation)),
            Err(problem) => Err(invalid(text, problem)),
        }
    }
}

impl TryFrom<String> for IpRange {
    type Error = InvalidEntry;

    fn try_from(text: String) -> Result<Self, InvalidEntry> {
        text.parse()
    }
}

impl From<IpRange> for String {
    fn from(range: IpRange) -> Self {
        range.to_string()
    }
}

impl fmt::Display for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix == whole {
            self.address.fmt(f)
        } else {
            write!(f, "{}/{}", self.address, self.prefix)
        }
    }
}

impl FromStr for Target {
    type Err = InvalidEntry;

    fn from_str(text: &str) -> Result<Self, InvalidEntry> {
        target(text).map_err(|problem| invalid(text, problem))
    }
}

impl FromStr for Entry {
    type Err = InvalidEntry;

    fn from_str(text: &str) -> Result<Self, InvalidEntry> {
        text.parse().map(Self::of)
    }
}

fn invalid(entry: &str, problem: EntryProblem) -> InvalidEntry {
    InvalidEntry { entry: entry.chars().take(limits::NETWORK_ENTRY_MAX_BYTES).collect(), problem }
}

fn target(text: &str) -> Result<Target, EntryProblem> {
    if text.is_empty() {
        return Err(EntryProblem::Empty);
    }
    if text.len() > limits::NETWORK_ENTRY_MAX_BYTES {
        return Err(EntryProblem::TooLong);
    }
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        return Err(EntryProblem::Url(host.to_owned()));
    }
    if text == "*" {
        return Ok(Target::Any);
    }
    if let Some(range) = range(text)? {
        return Ok(Target::Range { range, port: None });
    }
    let (host, port) = split_port(text)?;
    if let Some(range) = range(host)? {
        return Ok(Target::Range { range, port });
    }
    if let Some(suffix) = host.strip_prefix("*.") {
        return below(suffix, port);
    }
    if host.contains('*') {
        return Err(EntryProblem::Wildcard);
    }
    match (host.trim_end_matches('.').contains('.'), port) {
        (true, port) => Ok(Target::Name { host: host_name(host)?, port }),
        (false, Some(_)) => Err(EntryProblem::PresetPort),
        (false, None) if is_preset_name(host) => Ok(Target::Preset(host.to_owned())),
        (false, None) => {
            host_name(host)?;
            Err(EntryProblem::PresetName)
        }
    }
}

fn below(suffix: &str, port: Option<u16>) -> Result<Target, EntryProblem> {
    if suffix.contains('*') {
        return Err(EntryProblem::Wildcard);
    }
    Ok(Target::Below { suffix: host_name(suffix)?, port })
}

/// An address, or an address and the length of a prefix; `None` if it begins with neither.
fn range(text: &str) -> Result<Option<IpRange>, EntryProblem> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return Ok(None) };
    let Some(prefix) = prefix else { return Ok(Some(IpRange::of(address))) };
    if address.is_ipv4() && prefix.contains(':') {
        // A port follows; behind an IPv6 range it needs brackets.
        return Ok(None);
    }
    let is_number = !prefix.is_empty() && prefix.chars().all(|c| c.is_ascii_digit());
    let length = prefix.parse().ok().filter(|_| is_number);
    let length = length.ok_or_else(|| EntryProblem::Prefix(prefix.to_owned()))?;
    IpRange::new(address, length).map(Some)
}

/// `host:port` or `[address]:port`.
fn split_port(text: &str) -> Result<(&str, Option<u16>), EntryProblem> {
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, rest)) = rest.split_once(']') else {
            return Err(EntryProblem::Label(text.to_owned()));
        };
        return match rest.strip_prefix(':') {
            Some(digits) => Ok((address, Some(port(digits)?))),
            None if rest.is_empty() => Ok((address, None)),
            None => Err(EntryProblem::Label(text.to_owned())),
        };
    }
    match text.split_once(':') {
        Some((host, digits)) => Ok((host, Some(port(digits)?))),
        None => Ok((text, None)),
    }
}

fn port(digits: &str) -> Result<u16, EntryProblem> {
    let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
    let port = digits.parse().ok().filter(|port| is_number && *port != 0);
    port.ok_or_else(|| EntryProblem::Port(digits.to_owned()))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, port) = match self {
            Self::Preset(name) => return f.write_str(name),
            Self::Any => return f.write_str("*"),
            Self::Name { host, port } => (host.clone(), port),
            Self::Below { suffix, port } => (format!("*.{suffix}"), port),
            Self::Range { range, port: port @ Some(_) } if range.address.is_ipv6() => {
                (format!("[{range}]"), port)
            }
            Self::Range { range, port } => (range.to_string(), port),
        };
        match port {
            Some(port) => write!(f, "{text}:{port}"),
            None => f.write_str(&text),
        }
    }
}

/// As text if it can be, otherwise the target with its rules in brackets.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)?;
        match &self.requests {
            Some(requests) => write!(f, " ({requests})"),
            None => Ok(()),
        }
    }
}

/// The object form.
#[derive(Serialize, ToSchema)]
#[schema(as = NetworkEntry)]
pub(super) struct EntryObject {
    /// `host`, `*.host` or `host:port`.
    host: String,
    #[serde(flatten)]
    requests: RequestsDraft,
}

/// `flatten` and `deny_unknown_fields` exclude each other when reading.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryFields {
    host: String,
    access: Option<super::requests::Access>,
    methods: Option<Vec<String>>,
    paths: Option<Vec<String>>,
}

impl TryFrom<EntryFields> for Entry {
    type Error = InvalidEntry;

    fn try_from(fields: EntryFields) -> Result<Self, InvalidEntry> {
        let EntryFields { host, access, methods, paths } = fields;
        let target = target(&host).map_err(|problem| invalid(&host, problem))?;
        let draft = RequestsDraft { access, methods, paths };
        let requests = draft.check().map_err(|problem| invalid(&host, problem.into()))?;
        match target {
            Target::Name { .. } | Target::Below { .. } => {}
            Target::Preset(_) | Target::Any | Target::Range { .. } if requests.is_none() => {}
            Target::Preset(_) | Target::Any | Target::Range { .. } => {
                return Err(invalid(&host, EntryProblem::RequestsNeedName));
            }
        }
        Ok(Self { target, requests })
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.requests {
            None => to.collect_str(&self.target),
            Some(requests) => {
                let requests = RequestsDraft::from(requests);
                EntryObject { host: self.target.to_string(), requests }.serialize(to)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a network entry: text, or an object with `host`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Entry, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
                let fields = EntryFields::deserialize(MapAccessDeserializer::new(map))?;
                fields.try_into().map_err(de::Error::custom)
            }
        }

        from.deserialize_any(Form)
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

impl utoipa::PartialSchema for Entry {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        OneOfBuilder::new()
            .item(ObjectBuilder::new().schema_type(Type::String))
            .item(EntryObject::schema())
            .into()
    }
}

impl ToSchema for Entry {
    fn name() -> std::borrow::Cow<'static, str> {
        "NetworkEntry".into()
    }

    fn schemas(
        schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>,
    ) {
        EntryObject::schemas(schemas);
    }
}
