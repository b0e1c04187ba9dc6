//! The nftables table that gives connections and queries to the sockets. It is sent to the kernel as one transaction:
//! the one before applies until the new one does.
//!
//! ```text
//! chain caught                                              TCP that is to be caught
//!   IPv4 tproxy to 198.18.0.1:PORT accept
//!   IPv6 tproxy to [fc00::1]:PORT accept
//!   reject with tcp reset                                   nobody listens
//! chain in    prerouting -150
//!   to 127.0.0.0/8 or ::1 accept
//!   TCP SYN jump caught
//!   UDP to port 53 tproxy to port 53 of the address accept, else reject
//! chain out   output 0
//!   to 127.0.0.0/8 or ::1 accept
//!   TCP, UDP to and from port 53, destination unreachable accept
//!   reject
//! ```
//!
//! `out` refuses everything that nothing here would answer, such as QUIC, multicast and ping, so that programs do not
//! wait for it. Rejects are themselves sent through it.

use std::io;

use super::netlink::{CREATE, Messages, REQUEST};
use super::{ADDRESS_V4, ADDRESS_V6};

const NAME: &str = "sandkeep";
const CAUGHT: &str = "caught";
const IN: &str = "in";
const OUT: &str = "out";

const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

const INET: u8 = 1;
const IPV4: u8 = libc::AF_INET as u8;
const IPV6: u8 = libc::AF_INET6 as u8;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
const ICMP: u8 = libc::IPPROTO_ICMP as u8;
const ICMPV6: u8 = libc::IPPROTO_ICMPV6 as u8;

const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const DNS: [u8; 2] = 53u16.to_be_bytes();

/// Registers of 16 bytes.
const FIRST: u32 = libc::NFT_REG_1 as u32;
const SECOND: u32 = libc::NFT_REG_2 as u32;

/// Attributes, by the kernel's names without `NFTA_`.
mod attribute {
    pub const LIST_ELEM: u16 = 1;
    pub const TABLE_NAME: u16 = 1;
    pub const HOOK_HOOKNUM: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const CHAIN_TABLE: u16 = 1;
    pub const CHAIN_NAME: u16 = 3;
    pub const CHAIN_HOOK: u16 = 4;
    pub const CHAIN_POLICY: u16 = 5;
    pub const CHAIN_TYPE: u16 = 7;
    pub const RULE_TABLE: u16 = 1;
    pub const RULE_CHAIN: u16 = 2;
    pub const RULE_EXPRESSIONS: u16 = 4;
    pub const EXPR_NAME: u16 = 1;
    pub const EXPR_DATA: u16 = 2;
    pub const DATA_VALUE: u16 = 1;
    pub const DATA_VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
    pub const IMMEDIATE_DREG: u16 = 1;
    pub const IMMEDIATE_DATA: u16 = 2;
    pub const META_DREG: u16 = 1;
    pub const META_KEY: u16 = 2;
    pub const PAYLOAD_DREG: u16 = 1;
    pub const PAYLOAD_BASE: u16 = 2;
    pub const PAYLOAD_OFFSET: u16 = 3;
    pub const PAYLOAD_LEN: u16 = 4;
    pub const BITWISE_SREG: u16 = 1;
    pub const BITWISE_DREG: u16 = 2;
    pub const BITWISE_LEN: u16 = 3;
    pub const BITWISE_MASK: u16 = 4;
    pub const BITWISE_XOR: u16 = 5;
    pub const CMP_SREG: u16 = 1;
    pub const CMP_OP: u16 = 2;
    pub const CMP_DATA: u16 = 3;
    pub const TPROXY_FAMILY: u16 = 1;
    pub const TPROXY_REG_ADDR: u16 = 2;
    pub const TPROXY_REG_PORT: u16 = 3;
    pub const REJECT_TYPE: u16 = 1;
    pub const REJECT_ICMP_CODE: u16 = 2;
}

/// Puts the table into the network namespace of the calling thread, or replaces the one there.
pub fn replace(port: u16) -> io::Result<()> {
    let mut messages = Messages::default();
    batch(&mut messages, BATCH_BEGIN);
    let new = |messages: &mut Messages, kind, fill: &dyn Fn(&mut Messages)| {
        messages.add(message(kind), CREATE, &[INET, 0, 0, 0], fill);
    };
    new(&mut messages, libc::NFT_MSG_NEWTABLE, &|table| table.text(attribute::TABLE_NAME, NAME));
    // Without a chain this is about all rules of the table.
    messages.add(message(libc::NFT_MSG_DELRULE), REQUEST, &[INET, 0, 0, 0], |rules| {
        rules.text(attribute::RULE_TABLE, NAME);
    });
    new(&mut messages, libc::NFT_MSG_NEWCHAIN, &|chain| {
        chain.text(attribute::CHAIN_TABLE, NAME);
        chain.text(attribute::CHAIN_NAME, CAUGHT);
    });
    for (name, hook, priority) in
        [(IN, libc::NF_INET_PRE_ROUTING, -150i32), (OUT, libc::NF_INET_LOCAL_OUT, 0)]
    {
        new(&mut messages, libc::NFT_MSG_NEWCHAIN, &|chain| {
            chain.text(attribute::CHAIN_TABLE, NAME);
            chain.text(attribute::CHAIN_NAME, name);
            chain.nested(attribute::CHAIN_HOOK, |at| {
                at.number(attribute::HOOK_HOOKNUM, hook as u32);
                at.number(attribute::HOOK_PRIORITY, priority.cast_unsigned());
            });
            chain.number(attribute::CHAIN_POLICY, libc::NF_ACCEPT as u32);
            chain.text(attribute::CHAIN_TYPE, "filter");
        });
    }
    for (chain, rule) in rules(port) {
        let flags = CREATE | libc::NLM_F_APPEND as u16;
        messages.add(message(libc::NFT_MSG_NEWRULE), flags, &[INET, 0, 0, 0], |message| {
            message.text(attribute::RULE_TABLE, NAME);
            message.text(attribute::RULE_CHAIN, chain);
            message.nested(attribute::RULE_EXPRESSIONS, |list| {
                rule.iter().flat_map(|step| step.expressions()).for_each(|each| each.write(list));
            });
        });
    }
    messages.acknowledge_last();
    batch(&mut messages, BATCH_END);
    messages.send(Some(rustix::net::netlink::NETFILTER))
}

fn batch(messages: &mut Messages, kind: u16) {
    let [high, low] = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    messages.add(kind, REQUEST, &[0, 0, high, low], |_| ());
}

fn message(kind: libc::c_int) -> u16 {
    ((libc::NFNL_SUBSYS_NFTABLES << 8) | kind) as u16
}

type Rule = Vec<RulePart>;

fn rules(port: u16) -> Vec<(&'static str, Rule)> {
    use RulePart::{Accept, Family, Reject, Reset, Transport};
    let to_listener = |family| RulePart::Hand { family, port: port.to_be_bytes() };
    let to_resolver = |family| RulePart::Hand { family, port: DNS };
    let mut rules = vec![
        (CAUGHT, vec![Family(IPV4), Transport(TCP), to_listener(IPV4), Accept]),
        (CAUGHT, vec![Family(IPV6), Transport(TCP), to_listener(IPV6), Accept]),
        (CAUGHT, vec![Transport(TCP), Reset]),
    ];
    for chain in [IN, OUT] {
        rules.push((chain, vec![Family(IPV4), RulePart::ToLoopback4, Accept]));
        rules.push((chain, vec![Family(IPV6), RulePart::ToLoopback6, Accept]));
    }
    let to_dns = || [Transport(UDP), RulePart::ToPort(DNS)];
    let query = |family| [&to_dns()[..], &[Family(family), to_resolver(family), Accept]].concat();
    rules.extend([
        (IN, vec![Transport(TCP), RulePart::Opens, RulePart::Jump(CAUGHT)]),
        (IN, query(IPV4)),
        (IN, query(IPV6)),
        (IN, [&to_dns()[..], &[Reject]].concat()),
        (OUT, vec![Transport(TCP), Accept]),
        (OUT, [&to_dns()[..], &[Accept]].concat()),
        (OUT, vec![Transport(UDP), RulePart::FromPort(DNS), Accept]),
        (OUT, vec![Family(IPV4), Transport(ICMP), RulePart::Type(3), Accept]),
        (OUT, vec![Family(IPV6), Transport(ICMPV6), RulePart::Type(1), Accept]),
        (OUT, vec![Reject]),
    ]);
    rules
}

/// A part of a rule: if it does not apply, the next rule follows.
#[derive(Clone, Copy)]
enum RulePart {
    Family(u8),
    Transport(u8),
    ToLoopback4,
    ToLoopback6,
    /// A TCP connection begins.
    Opens,
    ToPort([u8; 2]),
    FromPort([u8; 2]),
    /// Of an ICMP message.
    Type(u8),
    /// To the transparent socket at the sandbox's address of this family; does not apply if there is none.
    Hand {
        family: u8,
        port: [u8; 2],
    },
    Jump(&'static str),
    Accept,
    Reject,
    Reset,
}

impl RulePart {
    fn expressions(self) -> Vec<Expression> {
        use Expression::{Equal, Header, Immediate, Masked, Meta};
        let transport = |offset, length| Header {
            base: libc::NFT_PAYLOAD_TRANSPORT_HEADER as u32,
            offset,
            length,
        };
        let network = |offset, length| Header {
            base: libc::NFT_PAYLOAD_NETWORK_HEADER as u32,
            offset,
            length,
        };
        match self {
            Self::Family(family) => vec![Meta(libc::NFT_META_NFPROTO), Equal(vec![family])],
            Self::Transport(protocol) => vec![Meta(libc::NFT_META_L4PROTO), Equal(vec![protocol])],
            Self::ToLoopback4 => vec![network(16, 1), Equal(vec![127])],
            Self::ToLoopback6 => {
                vec![network(24, 16), Equal(std::net::Ipv6Addr::LOCALHOST.octets().to_vec())]
            }
            Self::Opens => vec![transport(13, 1), Masked(SYN_ACK), Equal(vec![SYN])],
            Self::ToPort(port) => vec![transport(2, 2), Equal(port.to_vec())],
            Self::FromPort(port) => vec![transport(0, 2), Equal(port.to_vec())],
            Self::Type(kind) => vec![transport(0, 1), Equal(vec![kind])],
            Self::Hand { family, port } => {
                let address = match family {
                    IPV4 => ADDRESS_V4.octets().to_vec(),
                    _ => ADDRESS_V6.octets().to_vec(),
                };
                vec![
                    Immediate { register: FIRST, value: address },
                    Immediate { register: SECOND, value: port.to_vec() },
                    Expression::Tproxy(family),
                ]
            }
            Self::Jump(chain) => vec![Expression::Verdict(libc::NFT_JUMP, Some(chain))],
            Self::Accept => vec![Expression::Verdict(libc::NF_ACCEPT, None)],
            Self::Reject => vec![Expression::Reject(
                libc::NFT_REJECT_ICMPX_UNREACH,
                libc::NFT_REJECT_ICMPX_PORT_UNREACH as u8,
            )],
            Self::Reset => vec![Expression::Reject(libc::NFT_REJECT_TCP_RST, 0)],
        }
    }
}

/// An expression of the kernel's. Values go through the first register.
enum Expression {
    Meta(libc::c_int),
    Header { base: u32, offset: u32, length: u32 },
    Masked(u8),
    Equal(Vec<u8>),
    Immediate { register: u32, value: Vec<u8> },
    Tproxy(u8),
    Reject(libc::c_int, u8),
    Verdict(libc::c_int, Option<&'static str>),
}

impl Expression {
    fn name(&self) -> &'static str {
        match self {
            Self::Meta(_) => "meta",
            Self::Header { .. } => "payload",
            Self::Masked(_) => "bitwise",
            Self::Equal(_) => "cmp",
            Self::Immediate { .. } | Self::Verdict(..) => "immediate",
            Self::Tproxy(_) => "tproxy",
            Self::Reject(..) => "reject",
        }
    }

    fn write(&self, list: &mut Messages) {
        list.nested(attribute::LIST_ELEM, |element| {
            element.text(attribute::EXPR_NAME, self.name());
            element.nested(attribute::EXPR_DATA, |data| self.write_data(data));
        });
    }

    fn write_data(&self, data: &mut Messages) {
        let value = |data: &mut Messages, kind, bytes: &[u8]| {
            data.nested(kind, |data| data.attribute(attribute::DATA_VALUE, bytes));
        };
        match self {
            Self::Meta(key) => {
                data.number(attribute::META_KEY, key.cast_unsigned());
                data.number(attribute::META_DREG, FIRST);
            }
            Self::Header { base, offset, length } => {
                data.number(attribute::PAYLOAD_DREG, FIRST);
                data.number(attribute::PAYLOAD_BASE, *base);
                data.number(attribute::PAYLOAD_OFFSET, *offset);
                data.number(attribute::PAYLOAD_LEN, *length);
            }
            Self::Masked(mask) => {
                data.number(attribute::BITWISE_SREG, FIRST);
                data.number(attribute::BITWISE_DREG, FIRST);
                data.number(attribute::BITWISE_LEN, 1);
                value(data, attribute::BITWISE_MASK, &[*mask]);
                value(data, attribute::BITWISE_XOR, &[0]);
            }
            Self::Equal(bytes) => {
                data.number(attribute::CMP_SREG, FIRST);
                data.number(attribute::CMP_OP, libc::NFT_CMP_EQ.cast_unsigned());
                value(data, attribute::CMP_DATA, bytes);
            }
            Self::Immediate { register, value: bytes } => {
                data.number(attribute::IMMEDIATE_DREG, *register);
                value(data, attribute::IMMEDIATE_DATA, bytes);
            }
            Self::Tproxy(family) => {
                data.number(attribute::TPROXY_FAMILY, u32::from(*family));
                data.number(attribute::TPROXY_REG_ADDR, FIRST);
                data.number(attribute::TPROXY_REG_PORT, SECOND);
            }
            Self::Reject(kind, code) => {
                data.number(attribute::REJECT_TYPE, kind.cast_unsigned());
                data.attribute(attribute::REJECT_ICMP_CODE, &[*code]);
            }
            Self::Verdict(code, chain) => {
                data.number(attribute::IMMEDIATE_DREG, libc::NFT_REG_VERDICT.cast_unsigned());
                data.nested(attribute::IMMEDIATE_DATA, |data| {
                    data.nested(attribute::DATA_VERDICT, |verdict| {
                        verdict.number(attribute::VERDICT_CODE, code.cast_unsigned());
                        if let Some(chain) = chain {
                            verdict.text(attribute::VERDICT_CHAIN, chain);
                        }
                    });
                });
            }
        }
    }
}
