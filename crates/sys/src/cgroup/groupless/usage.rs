//! The resource usage of a process tree, by summing up /proc. A dead process counts with the parent that has waited for
//! it, which in the end is the guest.

use std::collections::HashMap;
use std::fs;
use std::io;

use crate::cgroup::Used;

/// One process, as `/proc/<pid>/stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessStat {
    parent: u32,
    /// Its own time and that of the children it has waited for.
    ticks: u64,
    resident_pages: u64,
}

/// The usage of `first` and all its descendants.
pub fn of_tree(first: u32) -> io::Result<Used> {
    let processes = processes()?;
    if !processes.contains_key(&first) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut used = Used::default();
    let (mut ticks, mut pages) = (0, 0);
    for (pid, process) in &processes {
        if descends(*pid, first, &processes) {
            used.pids += 1;
            ticks += process.ticks;
            pages += process.resident_pages;
        }
    }
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    used.cpu_micros = ticks * 1_000_000 / per_second;
    used.memory_bytes = pages * rustix::param::page_size() as u64;
    Ok(used)
}

fn processes() -> io::Result<HashMap<u32, ProcessStat>> {
    let mut processes = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        // It may be gone by now.
        processes.extend(stat.ok().and_then(|stat| parse(&stat)).map(|process| (pid, process)));
    }
    Ok(processes)
}

/// The name in the line is chosen by the process and may contain anything, so fields are counted from its last
/// parenthesis.
fn parse(stat: &str) -> Option<ProcessStat> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i64>().ok();
    let ticks = (11..15).map(number).sum::<Option<i64>>()?;
    Some(ProcessStat {
        parent: u32::try_from(number(1)?).ok()?,
        ticks: u64::try_from(ticks).ok()?,
        resident_pages: u64::try_from(number(21)?).ok()?,
    })
}

fn descends(pid: u32, first: u32, processes: &HashMap<u32, ProcessStat>) -> bool {
    let mut at = pid;
    // A parent is older than its child, so this terminates; the bound covers pids that are reused while we read.
    for _ in 0..=processes.len() {
        if at == first {
            return true;
        }
        match processes.get(&at) {
            Some(process) => at = process.parent,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name() {
        let line = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5 6 99 1 1";
        let process = ProcessStat { parent: 3, ticks: 100, resident_pages: 99 };
        assert_eq!(parse(line), Some(process));
        assert_eq!(parse("7 (x) S 3"), None);
    }

    #[test]
    fn this_process_uses_something_and_counts_its_children() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let used = of_tree(std::process::id()).expect("we run");
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
        assert!(used.pids >= 2 && used.memory_bytes > 0, "{used:?}");
    }
}
