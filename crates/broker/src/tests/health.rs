use std::sync::atomic::Ordering;

use super::world::{LONG, World, create, me};
use crate::error::Error;
use crate::{Broker, Health, PoolState, Readiness};
use sandkeep_core::SpecDraft;
use sandkeep_storage::PoolHealth;

/// Waits until the health is this: an older result may be shown for a moment.
async fn becomes(broker: &Broker, status: Readiness) -> Health {
    let wait = async {
        loop {
            let health = broker.health().await;
            if health.status == status {
                return health;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, wait).await.unwrap_or_else(|_| panic!("it never became {status:?}"))
}

fn full(world: &World, pool: Option<PoolHealth>) {
    *world.storage.pool.lock().expect("nobody panics with it") = pool;
}

#[tokio::test]
async fn a_healthy_broker_tells_what_it_has() {
    let world = World::new();
    let broker = world.open().await;
    let (first, _) = (create(&broker).await, create(&broker).await);
    broker.stop(&me(), &first.id).await.expect("stops");
    let health = broker.health().await;
    assert_eq!((health.status, health.errors.as_slice()), (Readiness::Ready, &[][..]));
    assert_eq!(health.sandboxes.total, 2);
    let state = |name| health.sandboxes.by_state[name];
    assert_eq!((state("running"), state("stopped"), state("failed")), (1, 1, 0));
    let pool = (health.pool.state, health.pool.used_bytes, health.pool.free_bytes);
    assert_eq!(pool, (PoolState::Ok, Some(40), Some(60)));
}

#[tokio::test]
async fn a_full_pool_is_not_ready_and_a_hanging_one_does_not_hang_the_answer() {
    let world = World::new();
    let broker = world.open().await;
    full(&world, Some(PoolHealth { total_bytes: 100, free_bytes: 1 }));
    let health = becomes(&broker, Readiness::NotReady).await;
    assert_eq!(health.pool.state, PoolState::Critical);
    assert!(health.errors[0].contains("full"), "{:?}", health.errors);

    full(&world, Some(PoolHealth { total_bytes: 100, free_bytes: 60 }));
    becomes(&broker, Readiness::Ready).await;

    full(&world, None);
    let health = becomes(&broker, Readiness::NotReady).await;
    assert_eq!(health.pool.state, PoolState::Unusable);
    assert!(health.errors[0].contains("did not answer"), "{:?}", health.errors);
    tokio::time::timeout(LONG, broker.shutdown()).await.expect("nor does it hang the shutdown");
}

#[tokio::test]
async fn a_full_pool_refuses_what_is_new_and_nothing_else() {
    let world = World::new();
    let broker = world.open().await;
    let sandbox = create(&broker).await;
    full(&world, Some(PoolHealth { total_bytes: 100, free_bytes: 4 }));
    becomes(&broker, Readiness::NotReady).await;
    let refused = broker.create(&me(), SpecDraft::default()).await.expect_err("it is full");
    assert!(matches!(refused, Error::PoolFull { storage: "set", .. }), "{refused:?}");
    assert!(refused.to_string().contains("95 %"), "{refused}");
    broker.stop(&me(), &sandbox.id).await.expect("stops");
    broker.start(&me(), &sandbox.id).await.expect("starts");
    full(&world, Some(PoolHealth { total_bytes: 100, free_bytes: 10 }));
    let health = becomes(&broker, Readiness::Ready).await;
    assert_eq!(health.pool.state, PoolState::Warning);
    create(&broker).await;
    broker.destroy(&me(), &sandbox.id).await.expect("destroyed");
}

#[tokio::test]
async fn a_pool_that_only_seems_full_refuses_nothing() {
    let world = World::new();
    let broker = world.open().await;
    create(&broker).await;
    full(&world, Some(PoolHealth { total_bytes: 100, free_bytes: 4 }));
    becomes(&broker, Readiness::NotReady).await;
    let freed = Some(PoolHealth { total_bytes: 100, free_bytes: 50 });
    *world.storage.reclaimed.lock().expect("nobody panics with it") = freed;
    create(&broker).await;
}

#[tokio::test]
async fn a_store_that_fails_is_noticed_and_so_is_its_recovery() {
    let world = World::new();
    let broker = world.open().await;
    world.failing_writes.store(usize::MAX, Ordering::SeqCst);
    broker.create(&me(), SpecDraft::default()).await.expect_err("nothing can be written");
    let health = becomes(&broker, Readiness::NotReady).await;
    assert!(health.errors[0].contains("the disk is full"), "{:?}", health.errors);
    world.failing_writes.store(0, Ordering::SeqCst);
    becomes(&broker, Readiness::Ready).await;
}

#[tokio::test]
async fn a_broker_that_shuts_down_is_not_ready() {
    let broker = World::new().open().await;
    broker.shutdown().await;
    let health = becomes(&broker, Readiness::NotReady).await;
    assert!(health.errors[0].contains("shutting down"), "{:?}", health.errors);
}
