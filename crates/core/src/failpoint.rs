//! Named points in every verb at which a test kills the daemon with SIGKILL, as a power cut or the
//! kernel would. They exist only with the cargo feature `failpoints`; a release has none of them.
//!
//! `SANDKEEP_FAILPOINT=create.after_intent` kills the daemon the first time it passes this point.
//!
//! Unit tests arm the points one by one: there a point ends only the task that passes it. For a supervisor that has the
//! same effect, and the test continues with a new broker.

/// All points, in the order in which their verb passes them. Points of concurrent steps are in source order.
pub const ALL: &[&str] = &[
    "create.after_row",
    "create.after_key",
    "create.after_name",
    "create.after_slot",
    "create.after_home",
    "create.after_reserve",
    "create.after_intent",
    "create.after_volume",
    "create.after_template",
    "create.after_source",
    "create.after_runtime_create",
    "create.after_launch",
    "create.after_source_finished",
    "create.after_meta_ready",
    "create.after_outcome",
    "create.after_key_outcome",
    "create.before_answer",
    "network.after_secrets",
    "network.after_certificate",
    "network.after_open",
    "network.after_values",
    "exec.after_admission",
    "exec.after_journal",
    "exec.after_start",
    "exec.after_output",
    "exec.after_end",
    "exec.after_event",
    "exec.after_journal_end",
    "stop.after_intent",
    "stop.after_processes",
    "stop.after_outcome",
    "start.after_intent",
    "start.after_runtime_create",
    "start.after_launch",
    "start.after_outcome",
    "pause.after_intent",
    "pause.after_freeze",
    "pause.after_outcome",
    "resume.after_intent",
    "resume.after_thaw",
    "resume.after_outcome",
    "snapshot.after_intent",
    "snapshot.after_freeze",
    "snapshot.after_snapshot",
    "snapshot.after_thaw",
    "snapshot.after_record",
    "snapshot.after_event",
    "snapshot.after_outcome",
    "prune.after_record",
    "prune.after_copy",
    "prune.after_removed",
    "rollback.after_intent",
    "rollback.after_processes",
    "rollback.after_volume",
    "rollback.after_launch",
    "rollback.after_outcome",
    "revert.after_intent",
    "revert.after_files",
    "revert.after_outcome",
    "fork.after_snapshot",
    "fork.after_key",
    "fork.after_intent",
    "fork.after_volume",
    "fork.after_identity",
    "fork.after_base_snapshot",
    "fork.after_base_record",
    "fork.after_made",
    "fork.after_event",
    "fork.after_outcome",
    "fork.after_transient",
    "race.after_intent",
    "race.after_forks",
    "race.after_judged",
    "race.after_before",
    "race.after_winner",
    "race.after_keeping",
    "race.after_files",
    "race.after_sealing",
    "race.after_turn",
    "race.after_removed",
    "race.after_outcome",
    "rename.after_intent",
    "rename.after_claim",
    "rename.after_row",
    "rename.after_free",
    "amend.after_row",
    "amend.after_meta",
    "destroy.after_intent",
    "destroy.after_runtime",
    "destroy.after_meta",
    "destroy.after_volume",
    "destroy.after_snapshots",
    "destroy.after_home",
    "destroy.after_name",
    "destroy.after_slot",
    "destroy.after_event",
    "destroy.after_row",
    "codebase.after_intent",
    "codebase.after_volume",
    "codebase.after_source",
    "codebase.after_base",
    "codebase.after_outcome",
    "codebase.delete_after_intent",
    "codebase.delete_after_volume",
    "codebase.delete_after_row",
    "template.after_intent",
    "template.after_image",
    "template.after_draft",
    "template.after_applied",
    "template.after_kept",
    "template.after_freeze",
    "template.after_layer",
    "template.after_capture",
    "template.after_record",
    "template.after_outcome",
    "template.after_forgotten",
    "template.after_layer_removed",
    "btrfs.snapshot_after_notes",
    "btrfs.snapshot_after_group",
    "btrfs.snapshot_after_made",
    "btrfs.rollback_after_draft",
    "btrfs.rollback_after_exchange",
    "btrfs.rollback_after_delete",
    "btrfs.fork_after_notes",
    "btrfs.fork_after_made",
    "btrfs.fork_after_limit",
    "btrfs.delete_after_snapshot",
    "btrfs.destroy_after_snapshot",
    "btrfs.grow_after_file",
    "btrfs.grow_after_device",
    "btrfs.inflate_after_file",
    "btrfs.inflate_after_holes",
    "btrfs.deflate_after_blocks",
    "local.snapshot_after_draft",
    "local.snapshot_after_copy",
    "local.snapshot_after_name",
    "local.rollback_after_copy",
    "local.rollback_after_exchange",
    "local.rollback_after_sync",
    "local.fork_after_copy",
    "local.fork_after_name",
    "local.destroy_after_snapshots",
    "build.after_intent",
    "build.after_context",
    "build.after_archive",
    "build.after_row",
    "build.after_step",
    "build.after_cache_row",
    "build.after_cache_volume",
    "build.after_sandbox",
    "build.after_run",
    "build.after_layer",
    "build.after_room",
    "build.after_steps",
    "build.after_outcome",
    "start_up.after_note",
    "start_up.after_launch",
    "start_up.after_begun",
    "zfs.snapshot_after_made",
    "zfs.rollback_after_clone",
    "zfs.rollback_after_switch",
    "zfs.fork_after_made",
    "zfs.delete_after_snapshot",
    "zfs.destroy_after_unmount",
    "zfs.destroy_after_mark",
];

/// Marks a point between two steps of a verb.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::failpoint::pass($name)
    };
}

/// Without the feature a point does nothing.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn pass(_name: &str) {}

/// Dies here if this point is armed.
#[cfg(feature = "failpoints")]
pub fn pass(name: &str) {
    simulated::pass(name);
    if std::env::var_os("SANDKEEP_FAILPOINT").is_some_and(|wanted| wanted == name) {
        eprintln!("failpoint {name}: killing this process");
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}

/// Crashes one task instead of the process. Each test runs on a thread of its own, so the thread identifies whose point
/// it is.
#[cfg(feature = "failpoints")]
pub mod simulated {
    use std::cell::Cell;

    thread_local! {
        static ARMED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Ends the next task of this thread that passes `name`.
    pub fn arm(name: &'static str) {
        ARMED.set(Some(name));
    }

    /// Lets every point pass again.
    pub fn disarm() {
        ARMED.set(None);
    }

    /// Whether the armed point was passed.
    pub fn has_fired() -> bool {
        ARMED.get().is_none()
    }

    pub(super) fn pass(name: &str) {
        if ARMED.get() == Some(name) {
            ARMED.set(None);
            // Unwinds without a panic message, because the test expects it.
            std::panic::resume_unwind(Box::new("simulated crash"));
        }
    }
}
