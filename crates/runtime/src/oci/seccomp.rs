//! Our seccomp policy in OCI format, derived from the single policy.
//!
//! OCI has no "otherwise" for a call with conditions: each rule has to state by itself when it applies. And it compares
//! all 64 bits of an argument, while the kernel reads only 32 of most: a condition on the whole could be bypassed by
//! setting an unused bit. So every condition here is a masked comparison of the lower half, and "none of these values"
//! is the list of all prefixes that lead to none of them.

use super::spec::{Argument, Seccomp, SeccompAction, Syscalls};
use sandkeep_sys::seccomp::{Action, named_actions};

/// Calls of other architectures have other numbers and would need another policy; there is none. The tools kill the
/// caller.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    Refuse(i32),
}

/// Values whose bits in `mask` equal those of `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pattern {
    mask: u32,
    value: u32,
}

/// The filter of every sandbox.
pub fn policy() -> Seccomp {
    let (mut plain, mut conditional) = (Vec::<(Verdict, Vec<&'static str>)>::new(), Vec::new());
    for (name, action) in named_actions() {
        let verdict = match action {
            Action::Allow => Verdict::Allow,
            Action::Errno(errno) => Verdict::Refuse(errno),
            conditions => {
                conditional.extend(rules(name, conditions));
                continue;
            }
        };
        match plain.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, names)) => names.push(name),
            None => plain.push((verdict, vec![name])),
        }
    }
    let plain = plain.into_iter().map(|(verdict, names)| syscalls(names, verdict, Vec::new()));
    Seccomp {
        default_action: SeccompAction::Errno,
        default_errno_ret: libc::ENOSYS,
        architectures: vec![ARCHITECTURE],
        syscalls: plain.chain(conditional).collect(),
    }
}

/// The rules of one call whose arguments matter.
fn rules(name: &'static str, action: Action) -> Vec<Syscalls> {
    let all = cases(action).into_iter();
    all.map(|(verdict, conditions)| {
        let argument = |(index, pattern): (u32, Pattern)| Argument {
            index,
            value: pattern.mask.into(),
            value_two: pattern.value.into(),
            op: "SCMP_CMP_MASKED_EQ",
        };
        syscalls(vec![name], verdict, conditions.into_iter().map(argument).collect())
    })
    .collect()
}

/// A verdict, and the required patterns of the arguments.
type Case = (Verdict, Vec<(u32, Pattern)>);

/// Each value of the inspected arguments is in exactly one verdict's cases.
fn cases(action: Action) -> Vec<Case> {
    match action {
        Action::Allow => vec![(Verdict::Allow, Vec::new())],
        Action::Errno(errno) => vec![(Verdict::Refuse(errno), Vec::new())],
        Action::UnlessFlags { mask, refuse } => {
            let bits = (0..u32::BITS).map(|at| 1 << at).filter(|bit| mask & bit != 0);
            let set = bits.map(|bit| Pattern { mask: bit, value: bit });
            let refused = set.map(|pattern| (Verdict::Refuse(refuse), vec![(0, pattern)]));
            let allowed = (Verdict::Allow, vec![(0, Pattern { mask, value: 0 })]);
            refused.chain([allowed]).collect()
        }
        Action::Match { argument, arms, otherwise } => {
            let all: Vec<u32> = arms.iter().flat_map(|(values, _)| *values).copied().collect();
            let arms = arms.iter().map(|(values, action)| (each_of(values), *action));
            let ways = arms.chain([(none_of(&all), *otherwise)]);
            let of_way = |(patterns, action): (Vec<Pattern>, Action)| {
                let inner = cases(action);
                patterns.into_iter().flat_map(move |pattern| {
                    let with = |(verdict, rest): &Case| {
                        (*verdict, [&[(argument, pattern)], rest.as_slice()].concat())
                    };
                    inner.iter().map(with).collect::<Vec<_>>()
                })
            };
            ways.flat_map(of_way).collect()
        }
    }
}

fn each_of(values: &[u32]) -> Vec<Pattern> {
    values.iter().map(|value| Pattern { mask: u32::MAX, value: *value }).collect()
}

/// All values but these: at every bit of their prefixes, the branch that leads to none of them.
fn none_of(values: &[u32]) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    // The distinct prefixes of one length.
    let mut prefixes = vec![Pattern { mask: 0, value: 0 }];
    for at in (0..u32::BITS).rev() {
        let mut longer = Vec::new();
        for prefix in &prefixes {
            for bit in [0, 1 << at] {
                let side = Pattern { mask: prefix.mask | (1 << at), value: prefix.value | bit };
                if values.iter().any(|value| value & side.mask == side.value) {
                    longer.push(side)
                } else {
                    patterns.push(side)
                }
            }
        }
        prefixes = longer;
    }
    patterns
}

fn syscalls(names: Vec<&'static str>, verdict: Verdict, args: Vec<Argument>) -> Syscalls {
    match verdict {
        Verdict::Allow => Syscalls { names, action: SeccompAction::Allow, errno_ret: None, args },
        Verdict::Refuse(errno) => {
            Syscalls { names, action: SeccompAction::Errno, errno_ret: Some(errno), args }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy's own verdict for a call with these arguments.
    fn expected(action: Action, arguments: [u32; 3]) -> Verdict {
        match action {
            Action::UnlessFlags { mask, refuse } if arguments[0] & mask != 0 => {
                Verdict::Refuse(refuse)
            }
            Action::Allow | Action::UnlessFlags { .. } => Verdict::Allow,
            Action::Errno(errno) => Verdict::Refuse(errno),
            Action::Match { argument, arms, otherwise } => {
                let value = arguments[argument as usize];
                let arm = arms.iter().find(|(values, _)| values.contains(&value));
                expected(arm.map_or(*otherwise, |(_, action)| *action), arguments)
            }
        }
    }

    #[test]
    fn every_condition_decides_every_value_as_the_policy_does() {
        let odd = [0, 1, 2, 3, 10, 16, 38, 40, 0x5412, 0x5413, 0x541C, 0x5000_940E, 0x1000_0000];
        let mut looked_at = 0;
        for (name, action) in named_actions() {
            let neighbours = odd.into_iter().flat_map(|v: u32| [v, !v, v.wrapping_sub(1)]);
            let single_bits = (0..u32::BITS).map(|at| 1 << at);
            let cases = cases(action);
            for value in neighbours.chain(single_bits) {
                for given in [[value; 3], [2, 1, value], [16, 1, value], [value, value, 0]] {
                    let holds = |(at, p): &(u32, Pattern)| given[*at as usize] & p.mask == p.value;
                    let met = cases.iter().filter(|case| case.1.iter().all(holds));
                    let verdicts: Vec<Verdict> = met.map(|case| case.0).collect();
                    let wanted = expected(action, given);
                    assert!(!verdicts.is_empty(), "{name}({given:x?}) is not decided");
                    assert!(
                        verdicts.iter().all(|v| *v == wanted),
                        "{name}({given:x?}): {verdicts:?}"
                    );
                    looked_at += 1;
                }
            }
        }
        assert!(looked_at > 10_000, "only {looked_at} values were looked at");
    }

    #[test]
    fn what_the_policy_does_not_name_does_not_exist_inside() {
        let policy = policy();
        assert_eq!(policy.default_errno_ret, libc::ENOSYS);
        let named = |name: &str| policy.syscalls.iter().any(|rule| rule.names.contains(&name));
        assert!(named("mount") && named("read") && named("clone"));
        assert!(!named("clone3") && !named("io_setup"));
    }
}
