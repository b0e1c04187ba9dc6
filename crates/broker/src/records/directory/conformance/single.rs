//! One promise per check.

use std::sync::Arc;

use futures_util::future::join_all;

use super::weather::Meanwhile;
use super::{Factory, is_fenced, put, slot};
use crate::records::directory::{Directory, Phase, RequestPhase, RequestRecord, request_name};
use sandkeep_core::promises::{Verdict, ensure};
use sandkeep_core::{KeyId, Owner, Principal, SandboxId, limits};
use sandkeep_store::MemoryStore;

pub(super) fn nodes<const N: usize>(factory: &Factory) -> [Arc<dyn Directory>; N] {
    let store = Arc::new(MemoryStore::new());
    std::array::from_fn(|n| factory(Arc::clone(&store) as _, &format!("node{n}")))
}

fn request(sandbox: &SandboxId, at: jiff::Timestamp) -> RequestRecord {
    let (fingerprint, sandbox) = ("f".to_owned(), sandbox.clone());
    let phase = RequestPhase::Pending;
    RequestRecord { fingerprint, sandbox, others: Vec::new(), phase, at, node: None }
}

pub async fn a_row_is_read_back_until_it_is_removed(factory: Factory) -> Verdict {
    let [here, there] = nodes(&factory);
    let (owner, id) = (Owner::local(), SandboxId::random());
    let placing = put(&*here, &id, Phase::Placing, None, None).await?;
    let placed = put(&*here, &id, Phase::Placed, None, Some(placing)).await?;
    let found = there.row(&owner, &id).await?;
    let found = found.filter(|row| row.revision == placed).and_then(|row| row.placement);
    let said = found.as_ref().map(|placement| (&placement.at, placement.phase));
    ensure!(said == Some((here.node(), Phase::Placed)), "the other node reads {found:?}");
    let listed = there.rows(Some(&owner.organization)).await?.rows;
    ensure!(listed.len() == 1 && listed[0].id == id, "{} rows are listed", listed.len());
    ensure!(there.rows(Some("another")).await?.rows.is_empty(), "others' rows are listed");
    here.remove_row(&owner, &id, Some(placed)).await?;
    here.remove_row(&owner, &id, Some(placed)).await?;
    ensure!(there.row(&owner, &id).await?.is_none(), "it is there still");
    Ok(())
}

pub async fn a_write_over_another_nodes_is_fenced(factory: Factory) -> Verdict {
    let [here, there] = nodes(&factory);
    let (owner, id) = (Owner::local(), SandboxId::random());
    let mine = put(&*here, &id, Phase::Placed, None, None).await?;
    let theirs = put(&*there, &id, Phase::Placed, None, Some(mine)).await?;
    for known in [None, Some(mine)] {
        let written = put(&*here, &id, Phase::Destroying, None, known).await;
        ensure!(is_fenced(&written), "a write at {known:?} answered {written:?}");
        let removed = here.remove_row(&owner, &id, known).await;
        ensure!(is_fenced(&removed), "a removal at {known:?} answered {removed:?}");
    }
    let row = there.row(&owner, &id).await?;
    ensure!(row.is_some_and(|row| row.revision == theirs), "the other's row was changed");
    there.remove_row(&owner, &id, Some(theirs)).await?;
    let written = put(&*here, &id, Phase::Placed, None, Some(mine)).await;
    ensure!(is_fenced(&written), "a row that is gone came back: {written:?}");
    Ok(())
}

pub async fn a_write_whose_answer_was_lost_is_ones_own(factory: Factory) -> Verdict {
    let [here] = nodes(&factory);
    let (owner, id, slot) = (Owner::local(), SandboxId::random(), slot("s"));
    let first = put(&*here, &id, Phase::Placing, None, None).await?;
    put(&*here, &id, Phase::Placing, None, None).await?;
    put(&*here, &id, Phase::Placed, None, Some(first)).await?;
    for _ in 0..2 {
        ensure!(here.claim_slot(&owner, &slot, &id).await?.is_none(), "its own slot is taken");
    }
    let who = Principal::local();
    let name = request_name(&"k".parse()?, &who);
    let record = request(&id, jiff::Timestamp::now());
    here.put_request(&name, &record, None).await?;
    here.put_request(&name, &record, None).await?;
    here.remove_row(&owner, &id, Some(first)).await?;
    Ok(())
}

pub async fn of_many_who_accept_one_wins(factory: Factory) -> Verdict {
    let nodes: [_; 8] = nodes(&factory);
    let id = SandboxId::random();
    let named = put(&*nodes[0], &id, Phase::Placing, None, None).await?;
    let accepts = nodes[1..].iter().map(|node| put(&**node, &id, Phase::Placed, None, Some(named)));
    let answers = join_all(accepts).await;
    let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
    let fenced = answers.iter().filter(|answer| is_fenced(answer)).count();
    ensure!((accepted, fenced) == (1, 6), "{accepted} accepted, {fenced} were fenced");
    Ok(())
}

pub async fn of_many_claims_of_a_slot_one_wins(factory: Factory) -> Verdict {
    let nodes: [_; 8] = nodes(&factory);
    let (owner, slot) = (Owner::local(), slot("s"));
    let claims = nodes.iter().map(|node| async {
        let id = SandboxId::random();
        put(&**node, &id, Phase::Placing, Some(&slot), None).await?;
        Ok::<_, crate::DirectoryError>((node.claim_slot(&owner, &slot, &id).await?, id))
    });
    let answers = join_all(claims).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let winners: Vec<_> = answers.iter().filter(|(holder, _)| holder.is_none()).collect();
    ensure!(winners.len() == 1, "{} have one slot", winners.len());
    let (winner, others) =
        (&winners[0].1, answers.iter().filter_map(|(holder, _)| holder.as_ref()));
    ensure!(others.clone().all(|holder| holder == winner), "the losers were told somebody else");
    for (_, loser) in answers.iter().filter(|(_, id)| id != winner) {
        nodes[0].free_slot(&owner, &slot, loser).await?;
    }
    let holder = nodes[0].slot_holder(&owner, &slot).await?;
    ensure!(holder.as_ref() == Some(winner), "losers gave it back: {holder:?}");
    Ok(())
}

pub async fn a_slot_whose_row_is_gone_is_free(factory: Factory) -> Verdict {
    let [here, there] = nodes(&factory);
    let (owner, slot) = (Owner::local(), slot("s"));
    let [first, second] = [SandboxId::random(), SandboxId::random()];
    let row = put(&*here, &first, Phase::Placing, Some(&slot), None).await?;
    here.claim_slot(&owner, &slot, &first).await?;
    put(&*there, &second, Phase::Placing, Some(&slot), None).await?;
    let holder = there.claim_slot(&owner, &slot, &second).await?;
    ensure!(holder.as_ref() == Some(&first), "a slot was taken from a row: {holder:?}");
    here.remove_row(&owner, &first, Some(row)).await?;
    let holder = there.claim_slot(&owner, &slot, &second).await?;
    ensure!(holder.is_none(), "nobody can have it: {holder:?}");
    Ok(())
}

pub async fn a_slot_is_taken_only_from_the_holder_that_was_seen(factory: Factory) -> Verdict {
    let store = Arc::new(Meanwhile::default());
    let here = factory(Arc::clone(&store) as _, "here");
    let there = factory(Arc::clone(&store.entries) as _, "there");
    let (owner, slot) = (Owner::local(), slot("s"));
    let [gone, mine, theirs] = std::array::from_fn(|_| SandboxId::random());
    let row = put(&*here, &gone, Phase::Placing, Some(&slot), None).await?;
    here.claim_slot(&owner, &slot, &gone).await?;
    here.remove_row(&owner, &gone, Some(row)).await?;
    put(&*here, &mine, Phase::Placing, Some(&slot), None).await?;
    put(&*there, &theirs, Phase::Placing, Some(&slot), None).await?;
    let faster = {
        let (there, owner, slot, id) = (there.clone(), owner.clone(), slot.clone(), theirs.clone());
        async move { drop(there.claim_slot(&owner, &slot, &id).await) }
    };
    store.after_missing_row(Box::pin(faster));
    let holder = here.claim_slot(&owner, &slot, &mine).await?;
    ensure!(holder.as_ref() == Some(&theirs), "both have it: {holder:?}");
    let holder = there.slot_holder(&owner, &slot).await?;
    ensure!(holder.as_ref() == Some(&theirs), "it was taken from {holder:?}");
    Ok(())
}

pub async fn of_many_requests_under_a_key_one_wins(factory: Factory) -> Verdict {
    let nodes: [_; 8] = nodes(&factory);
    let name = request_name(&"k".parse()?, &Principal::local());
    let now = jiff::Timestamp::now();
    let mut known = None;
    for _ in 0..2 {
        let puts = nodes.iter().map(|node| {
            let (name, record) = (name.clone(), request(&SandboxId::random(), now));
            async move { node.put_request(&name, &record, known).await.map(|_| record.sandbox) }
        });
        let answers = join_all(puts).await;
        let won: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
        let fenced = answers.iter().filter(|answer| is_fenced(answer)).count();
        ensure!(won.len() == 1 && fenced == 7, "{} won, {fenced} were fenced", won.len());
        let found = nodes[0].request(&name).await?;
        known = found.as_ref().map(|found| found.revision);
        let leads_to = found.and_then(|found| found.record).map(|record| record.sandbox);
        ensure!(leads_to.as_ref() == Some(won[0]), "the key leads to {leads_to:?}");
    }
    Ok(())
}

pub async fn sweeps_touch_only_what_is_this_nodes(factory: Factory) -> Verdict {
    let [here, there] = nodes(&factory);
    let (owner, slots) = (Owner::local(), ["held", "left"].map(slot));
    let [held, left] = [SandboxId::random(), SandboxId::random()];
    put(&*here, &held, Phase::Placed, Some(&slots[0]), None).await?;
    here.claim_slot(&owner, &slots[0], &held).await?;
    here.claim_slot(&owner, &slots[1], &left).await?;
    let name = request_name(&"k".parse()?, &Principal::local());
    let now = jiff::Timestamp::now();
    here.put_request(&name, &request(&held, now), None).await?;
    let later = now + 2 * limits::IDEMPOTENCY_KEPT;
    for (node, left_over) in [(&there, true), (&here, false)] {
        node.sweep_claims().await?;
        node.sweep_requests(later).await?;
        let holder = here.slot_holder(&owner, &slots[0]).await?;
        ensure!(holder.as_ref() == Some(&held), "a slot with a row was swept");
        let slot = here.slot_holder(&owner, &slots[1]).await?.is_some();
        let request = here.request(&name).await?.is_some();
        let node = &node.node().node;
        ensure!((slot, request) == (left_over, left_over), "after {node}: {slot}, {request}");
    }
    Ok(())
}

pub async fn an_api_key_holds_for_all_until_it_is_removed(factory: Factory) -> Verdict {
    let [here, there] = nodes(&factory);
    let id: KeyId = KeyId::of_hex(&"0a".repeat(KeyId::BYTES))?;
    here.add_api_key(&id, b"key".to_vec()).await?;
    ensure!(here.add_api_key(&id, b"other".to_vec()).await.is_err(), "a key was replaced");
    ensure!(there.api_key(&id).await?.as_deref() == Some(b"key"), "the other node lacks it");
    ensure!(there.api_keys().await?.len() == 1, "it is not listed");
    ensure!(there.remove_api_key(&id).await?, "it was not there");
    ensure!(!here.remove_api_key(&id).await?, "it was there twice");
    ensure!(here.api_key(&id).await?.is_none(), "it holds still");
    Ok(())
}
