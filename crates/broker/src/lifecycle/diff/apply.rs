//! Plans for `apply`: which steps give a caller's directory the changes of a sandbox. The diff is made here, of one
//! moment; the decision is made in [`sandkeep_tree::apply`].

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use super::{DiffBundle, DiffRequest, DiffText, Sides, inside};
use crate::Broker;
use crate::error::Error;
use sandkeep_core::ledger::Reservation;
use sandkeep_core::{Principal, SandboxId, limits};
use sandkeep_tree::{
    TreePath, View,
    apply::{self, Act, ApplyPlan, Here, PLAN, PlanProblem, PlanRequest},
    diff::{self, Diff, Options},
};

impl Broker {
    /// The plan, and the memory reserved for it, to be held until it was sent.
    pub async fn apply_plan(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: PlanRequest,
    ) -> Result<(ApplyPlan, Option<Arc<Reservation>>), Error> {
        let slot = self.shared.file_work.take(&who.organization)?;
        let (wanted, here, top) = self.apply_request(who, id, request)?;
        let comparison = self.comparison(who, id, wanted)?;
        let memory = comparison.options.memory.clone();
        let planned = self.compare(slot, comparison, move |sides, from, to, options| {
            Ok(planned(sides, (&from, &to), options, &here, &top)?.map(|(plan, _)| plan))
        });
        Ok((planned.await??, memory))
    }

    /// The same, followed by the files that the plan writes. Resolves when the plan is known; later errors break the
    /// stream off.
    pub async fn apply_bundle(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: PlanRequest,
    ) -> Result<DiffBundle, Error> {
        let slot = self.shared.file_work.take(&who.organization)?;
        let (wanted, here, top) = self.apply_request(who, id, request)?;
        let comparison = self.comparison(who, id, wanted)?;
        let work = move |sides: Sides, from: View, to: View, options: &Options| {
            let planned = planned(sides, (&from, &to), options, &here, &top)?;
            Ok(planned.map(|(plan, diff)| {
                let list = serde_json::to_vec(&plan);
                (PLAN, list.expect("a plan holds only texts and numbers"), diff, to)
            }))
        };
        self.send_bundle(slot, comparison, work).await
    }

    fn apply_request(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: PlanRequest,
    ) -> Result<(DiffRequest, Here, TreePath), Error> {
        let PlanRequest { path, from, files, scope, on_conflict } = request;
        let handle = self.shared.find(who, id)?;
        let path = path.unwrap_or_else(|| ".".to_owned());
        let top = inside("path", &handle.meta().spec, &path)?;
        let here = Here::new(files, scope, on_conflict).map_err(refused)?;
        let limit = Some(limits::DIFF_CHANGES_MAX);
        let text = DiffText::Omitted;
        Ok((DiffRequest { from, to: None, path: Some(path), limit, text }, here, top))
    }
}

/// The plan, and the changes whose files it writes.
fn planned(
    sides: Sides,
    (from, to): (&View, &View),
    options: &Options,
    here: &Here,
    top: &TreePath,
) -> io::Result<Result<(ApplyPlan, Diff), Error>> {
    let mut diff = diff::compare(from, to, options)?;
    if diff.truncated {
        return Ok(Err(Error::InvalidField {
            field: "path",
            problem: format!(
                "it has more than {} changes; plan for a directory in it",
                limits::DIFF_CHANGES_MAX
            ),
        }));
    }
    let changes = diff::told_with_digests(&diff, from, to)?;
    let plan = match apply::plan(here, &changes, top) {
        Ok(plan) => plan,
        Err(problem) => return Ok(Err(refused(problem))),
    };
    let written: HashSet<&TreePath> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.act {
            Act::Write { source, .. } => Some(source),
            Act::Remove
            | Act::RemoveDirectory
            | Act::MakeDirectory { .. }
            | Act::Link { .. }
            | Act::Mode { .. } => None,
        })
        .collect();
    diff.changes.retain(|change| written.contains(&change.path));
    Ok(Ok((ApplyPlan::of(&plan, sides.from, sides.frozen), diff)))
}

fn refused(problem: PlanProblem) -> Error {
    let field = match &problem {
        PlanProblem::NoDirectory { .. } => "path",
        PlanProblem::Path(_)
        | PlanProblem::Diff(_)
        | PlanProblem::Twice { .. }
        | PlanProblem::Needed { .. } => "files",
    };
    Error::InvalidField { field, problem: problem.to_string() }
}
