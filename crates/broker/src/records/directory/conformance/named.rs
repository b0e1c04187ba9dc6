//! Names, which can change while their sandbox stays.

use futures_util::future::join_all;
use serde_json::Map;

use super::Factory;
use super::single::nodes;
use crate::records::directory::{Directory, DirectoryError, NewRow, Phase, Share};
use sandkeep_core::promises::{Verdict, ensure};
use sandkeep_core::{Owner, SandboxId, SandboxName};
use sandkeep_store::Revision;

fn name(text: &str) -> SandboxName {
    text.parse().expect("a name")
}

/// A row of the local owner's that lists these names.
async fn put(
    directory: &dyn Directory,
    owner: &Owner,
    id: &SandboxId,
    names: &[&SandboxName],
    known: Option<Revision>,
) -> Result<Revision, DirectoryError> {
    let names = names.iter().copied().cloned().collect();
    let (share, record) = (Share::default(), Map::new());
    let row = NewRow { owner, id, phase: Phase::Placed, slot: None, names, share, record };
    directory.put_row(row, known).await
}

pub async fn of_many_claims_of_a_name_one_wins(factory: Factory) -> Verdict {
    let nodes: [_; 8] = nodes(&factory);
    let (owner, web) = (Owner::local(), name("web"));
    let claims = nodes.iter().map(|node| async {
        let id = SandboxId::random();
        put(&**node, &owner, &id, &[&web], None).await?;
        Ok::<_, DirectoryError>((node.claim_name(&owner, &web, &id).await?, id))
    });
    let answers = join_all(claims).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let winners: Vec<_> = answers.iter().filter(|(holder, _)| holder.is_none()).collect();
    ensure!(winners.len() == 1, "{} have one name", winners.len());
    let winner = &winners[0].1;
    let mut others = answers.iter().filter_map(|(holder, _)| holder.as_ref());
    ensure!(others.all(|holder| holder == winner), "the losers were told of another holder");
    for (_, loser) in answers.iter().filter(|(_, id)| id != winner) {
        nodes[0].free_name(&owner, &web, loser).await?;
    }
    let holder = nodes[0].name_holder(&owner, &web).await?;
    ensure!(holder.as_ref() == Some(winner), "a loser gave it back: {holder:?}");
    Ok(())
}

pub async fn a_name_leads_to_a_sandbox_only_while_its_row_lists_it(factory: Factory) -> Verdict {
    let [here, there] = nodes(&factory);
    let (owner, web, db) = (Owner::local(), name("web"), name("db"));
    let [first, second] = [SandboxId::random(), SandboxId::random()];
    let row = put(&*here, &owner, &first, &[&web], None).await?;
    here.claim_name(&owner, &web, &first).await?;
    put(&*there, &owner, &second, &[&web], None).await?;
    let holder = there.claim_name(&owner, &web, &second).await?;
    ensure!(holder.as_ref() == Some(&first), "a name was taken from its row: {holder:?}");
    // It is renamed, and dies before it has given the old name back.
    let row = put(&*here, &owner, &first, &[&web, &db], Some(row)).await?;
    here.claim_name(&owner, &db, &first).await?;
    let holder = there.claim_name(&owner, &web, &second).await?;
    ensure!(holder.as_ref() == Some(&first), "a rename lost the old name too early: {holder:?}");
    put(&*here, &owner, &first, &[&db], Some(row)).await?;
    let holder = here.name_holder(&owner, &web).await?;
    ensure!(holder.is_none(), "the old name still leads to {holder:?}");
    let holder = there.claim_name(&owner, &web, &second).await?;
    ensure!(holder.is_none(), "the old name is stuck: {holder:?}");
    let holder = there.name_holder(&owner, &db).await?;
    ensure!(holder.as_ref() == Some(&first), "the new name leads to {holder:?}");
    Ok(())
}

pub async fn a_name_is_its_owners_alone(factory: Factory) -> Verdict {
    let [here] = nodes(&factory);
    let web = name("web");
    for project in ["default", "a", "b"] {
        let owner = Owner { project: project.to_owned(), ..Owner::local() };
        let id = SandboxId::random();
        put(&*here, &owner, &id, &[&web], None).await?;
        let holder = here.claim_name(&owner, &web, &id).await?;
        ensure!(holder.is_none(), "project {project} shares its names: {holder:?}");
    }
    Ok(())
}

pub async fn sweeps_free_names_that_no_row_of_this_node_lists(factory: Factory) -> Verdict {
    let [here, there] = nodes(&factory);
    let (owner, names) = (Owner::local(), ["held", "former", "left"].map(name));
    let [held, left] = [SandboxId::random(), SandboxId::random()];
    put(&*here, &owner, &held, &[&names[0]], None).await?;
    for (name, id) in names.iter().zip([&held, &held, &left]) {
        here.claim_name(&owner, name, id).await?;
    }
    for node in [&there, &here] {
        node.sweep_claims().await?;
        let holder = here.name_holder(&owner, &names[0]).await?;
        ensure!(holder.as_ref() == Some(&held), "a name that a row lists was swept");
    }
    for name in &names[1..] {
        let late = SandboxId::random();
        put(&*there, &owner, &late, &[name], None).await?;
        let holder = there.claim_name(&owner, name, &late).await?;
        ensure!(holder.is_none(), "{name} is left with {holder:?}");
    }
    Ok(())
}
