//! Keys over a real store, and the mode they put a daemon in.

use jiff::{SignedDuration, Timestamp};

use super::*;
use sandkeep_broker::LocalDirectory;
use sandkeep_home::{KEYS_REQUIRED, REGISTRY};
use sandkeep_store::{MemoryStore, SqliteStore, StateStore};

async fn open(dir: &Path, store: &Arc<dyn StateStore>) -> Auth {
    let directory = LocalDirectory::new(Arc::clone(store), "node");
    Auth::open(dir, Arc::new(directory), None).await.expect("the store answers")
}

fn memory() -> Arc<dyn StateStore> {
    Arc::new(MemoryStore::new())
}

fn draft() -> KeyDraft {
    KeyDraft { organization: "acme".to_owned(), user: "ann".to_owned(), ..KeyDraft::default() }
}

async fn refusal(auth: &Auth, credential: &str) -> String {
    match auth.recognize(credential).await {
        Err(AuthError::Refused { problem }) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_first_key_requires_keys_for_good() {
    let (dir, store) = (tempfile::tempdir().expect("a directory"), memory());
    let auth = open(dir.path(), &store).await;
    assert_eq!(auth.mode(), Mode::Local);
    let made = auth.keys().create(draft()).await.expect("a good draft");
    assert_eq!(auth.mode(), Mode::Keys);
    auth.keys().revoke(&made.info.id).await.expect("it exists");
    assert_eq!(auth.mode(), Mode::Keys);
    assert_eq!(open(dir.path(), &store).await.mode(), Mode::Keys, "the last key is gone");
    assert_eq!(open(dir.path(), &memory()).await.mode(), Mode::Keys, "the registry is gone");
}

#[tokio::test]
async fn keys_without_the_marker_put_it_back() {
    let (dir, store) = (tempfile::tempdir().expect("a directory"), memory());
    open(dir.path(), &store).await.keys().create(draft()).await.expect("a good draft");
    std::fs::remove_file(dir.path().join(KEYS_REQUIRED)).expect("it is there");
    assert_eq!(open(dir.path(), &store).await.mode(), Mode::Keys);
    assert!(dir.path().join(KEYS_REQUIRED).exists());
}

#[tokio::test]
async fn a_draft_that_is_refused_changes_no_mode() {
    let (dir, store) = (tempfile::tempdir().expect("a directory"), memory());
    let auth = open(dir.path(), &store).await;
    let past = Timestamp::now() - SignedDuration::from_secs(1);
    for (field, bad) in [
        ("organization", KeyDraft { organization: String::new(), ..draft() }),
        ("user", KeyDraft { user: "u".repeat(257), ..draft() }),
        ("project", KeyDraft { project: Some(String::new()), ..draft() }),
        ("expires_at", KeyDraft { expires_at: Some(past), ..draft() }),
    ] {
        match auth.keys().create(bad).await {
            Err(Error::InvalidField { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{field}: {:?}", other.map(|made| made.info)),
        }
    }
    assert_eq!(auth.mode(), Mode::Local);
}

#[tokio::test]
async fn a_key_opens_until_it_is_revoked() {
    let (dir, store) = (tempfile::tempdir().expect("a directory"), memory());
    let auth = open(dir.path(), &store).await;
    let mut bound = draft();
    bound.project = Some("web".to_owned());
    bound.scopes = vec![Scope::Write];
    let made = auth.keys().create(bound).await.expect("a good draft");
    let known = auth.recognize(&made.key).await.expect("the key is good");
    assert_eq!(known.principal.organization, "acme");
    assert_eq!(known.principal.project.as_deref(), Some("web"));
    assert_eq!(known.principal.scopes.iter().collect::<Vec<_>>(), [Scope::Read, Scope::Write]);
    assert!(auth.holds(&known.lease).await);
    auth.keys().revoke(&made.info.id).await.expect("it exists");
    assert!(refusal(&auth, &made.key).await.contains("revoked"));
    assert!(!auth.holds(&known.lease).await);
    let again = auth.keys().revoke(&made.info.id).await;
    assert!(matches!(again, Err(Error::KeyNotFound { .. })));
}

#[tokio::test]
async fn a_key_ends_at_its_time() {
    let (dir, store) = (tempfile::tempdir().expect("a directory"), memory());
    let auth = open(dir.path(), &store).await;
    let end = Timestamp::now() + SignedDuration::from_millis(200);
    let soon = KeyDraft { expires_at: Some(end), ..draft() };
    let made = auth.keys().create(soon).await.expect("it is in the future");
    while Timestamp::now() < end {
        tokio::task::yield_now().await;
    }
    assert!(refusal(&auth, &made.key).await.contains("expired"));
    assert!(!auth.holds(&Lease::Key(made.info.id)).await);
}

#[tokio::test]
async fn neither_the_store_nor_the_list_has_the_key_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(REGISTRY);
    let store: Arc<dyn StateStore> = Arc::new(SqliteStore::open(&path).expect("a new store"));
    let auth = open(dir.path(), &store).await;
    let made = auth.keys().create(draft()).await.expect("a good draft");
    let (_, secret) = made.key.rsplit_once('_').expect("three parts");
    let listed = serde_json::to_string(&auth.keys().list().await.expect("a list")).expect("JSON");
    assert!(listed.contains("acme") && !listed.contains(secret) && !listed.contains("hash"));
    for entry in std::fs::read_dir(dir.path()).expect("a directory") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a file");
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "the secret is on the disk");
    }
}

#[tokio::test]
async fn the_form_of_a_credential_says_what_it_is_and_the_rest_is_refused() {
    let (dir, store) = (tempfile::tempdir().expect("a directory"), memory());
    let auth = open(dir.path(), &store).await;
    for odd in ["", "x", "a.b.c", "sk_00_11", "Bearer x"] {
        assert!(refusal(&auth, odd).await.contains("not an API key"), "{odd}");
    }
    let unknown = ApiKey::random();
    assert!(refusal(&auth, unknown.reveal()).await.contains("no such API key"));
}
