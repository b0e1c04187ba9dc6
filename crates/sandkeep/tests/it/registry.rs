//! Pulling images: from Debian's registry with images pushed by skopeo, and from fake registries that misbehave.
//! Everything is on loopback.

pub mod fake;
pub mod images;
mod misbehaved;
mod proxy;
mod realm;
mod resumed;
pub mod server;

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use flate2::read::GzDecoder;
use sandkeep_core::ledger::{Ledger, Reservation};
use sandkeep_core::{Owner, limits::REGISTRY_DOWNLOADS_MAX};
use sandkeep_image::{
    image::{Image, ImageError, Layer, Platform, Progress},
    source::{
        Source,
        registry::{Credentials, Registries, RegistryError, RegistryImage, Spool},
    },
};
use sandkeep_outgoing::{Outgoing, OutgoingError, Roots};
use sandkeep_tree::digest::Digest;
use serde_json::json;
use tempfile::TempDir;

use crate::skip_if;
use fake::{Content, Fake};
use images::{Made, archive, noise};
use realm::Realm;
use server::{Storage, Tls, obstacle};

/// A client with a spool of its own that may call loopback.
struct Client {
    spool: TempDir,
    outgoing: Outgoing,
    auth_file: Option<PathBuf>,
}

impl Client {
    fn new() -> Self {
        Self::allowing(&["127.0.0.0/8"], Roots::default())
    }

    fn allowing(allow: &[&str], roots: Roots) -> Self {
        sandkeep_outgoing::crypto::provide();
        let allow = allow.iter().map(|entry| entry.parse().expect("an entry")).collect();
        let spool = tempfile::tempdir().expect("a directory");
        Self { spool, outgoing: Outgoing::new(allow, roots), auth_file: None }
    }

    /// As a daemon that has just started.
    fn registries(&self) -> Registries {
        let spool = Arc::new(Spool::open(self.spool.path()).expect("a directory"));
        Registries::new(self.outgoing.clone(), spool, self.auth_file.clone())
    }

    fn image(&self, reference: &str, credentials: Option<Credentials>) -> RegistryImage {
        let reference = reference.parse().expect("a reference");
        self.registries().image(reference, credentials, &Owner::local(), &unlimited())
    }

    /// What a layer lies under in the spool.
    fn spool_name(layer: &[u8]) -> String {
        Spool::file_name(&Owner::local(), &Digest::of(layer))
    }

    fn spooled(&self) -> Vec<(String, u64)> {
        let entries = std::fs::read_dir(self.spool.path()).expect("a directory");
        let described = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.expect("an entry");
            let size = entry.metadata().map_or(0, |metadata| metadata.len());
            (entry.file_name().into_string().expect("text"), size)
        };
        entries.map(described).collect()
    }
}

/// Runs a pull: all of it, because connections live no longer than what runs them.
fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(future)
}

/// Brings all layers at once.
async fn bring(image: &Image) -> Result<Vec<Vec<u8>>, ImageError> {
    let open = |layer: &Layer| {
        let layer = layer.clone();
        async move { read(&layer).await }
    };
    futures_util::future::try_join_all(image.layers.iter().map(open)).await
}

async fn read(layer: &Layer) -> Result<Vec<u8>, ImageError> {
    let mut reader = layer.blob.open(&Progress::unheard()).await?;
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).expect("a file");
    Ok(bytes)
}

async fn pull(image: &RegistryImage) -> Result<Vec<Vec<u8>>, ImageError> {
    bring(&image.image().await?).await
}

fn registry_error(result: Result<Vec<Vec<u8>>, ImageError>) -> RegistryError {
    match result.expect_err("a pull that fails") {
        ImageError::Registry(error) => error,
        other => panic!("not about the registry: {other}"),
    }
}

fn password(password: &str) -> Option<Credentials> {
    Some(Credentials::Password { user: "ann".to_owned(), password: password.to_owned() })
}

fn small() -> Made {
    Made::of(&[archive(&[("etc/name", b"base")]), archive(&[("srv/app", b"app")])])
}

/// An image of some megabytes in one layer.
fn large() -> Made {
    Made::of(&[archive(&[("noise", &noise(6 << 20))])])
}

/// Space of which there is enough.
fn unlimited() -> Arc<Reservation> {
    Arc::new(Ledger::unlimited().open(&Owner::local()))
}

#[test]
fn an_image_is_pulled_with_its_config_and_all_layers() {
    skip_if!(obstacle());
    let (storage, made) = (Storage::new(), small());
    storage.push("team/app:1.0", &[&made]);
    let server = storage.serve(json!({}));
    let client = Client::new();
    now(async {
        let source = client.image(&format!("{}/team/app:1.0", server.host()), None);
        let image = source.image().await.expect("it is there");
        assert_eq!(image.id, Digest::of(&made.config));
        assert_eq!(image.config.env, [("A".to_owned(), "b".to_owned())]);
        assert_eq!(image.config.user.as_deref(), Some("1000"));
        assert_eq!(image.config.working_dir.as_deref(), Some("/srv"));
        assert_eq!(image.config.cmd, ["/bin/tool"]);
        let diff_ids: Vec<_> = image.layers.iter().map(|layer| layer.diff_id).collect();
        assert_eq!(diff_ids, made.diff_ids);
        assert_eq!(client.spooled(), [], "nothing is fetched that nobody opens");
        let layers = bring(&image).await.expect("they are there");
        assert_eq!(layers, made.layers);
        for (layer, bytes) in image.layers.iter().zip(&layers) {
            let mut content = Vec::new();
            GzDecoder::new(bytes.as_slice()).read_to_end(&mut content).expect("gzip");
            assert_eq!(Digest::of(&content), layer.diff_id);
        }
        source.taken_over();
    });
    assert_eq!(client.spooled(), [], "what was taken over need not be kept");
}

#[test]
fn progress_of_a_layer_is_told_until_its_end() {
    skip_if!(obstacle());
    let (storage, made) = (Storage::new(), large());
    storage.push("app:it", &[&made]);
    let server = storage.serve(json!({}));
    let client = Client::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    now(async {
        let image = client.image(&format!("{}/app:it", server.host()), None).image().await;
        let layer = &image.expect("it is there").layers[0];
        assert_eq!(layer.blob.size_bytes(), Some(made.layers[0].len() as u64));
        let listener = Arc::clone(&told);
        let progress = Progress::to(move |done| listener.lock().expect("not poisoned").push(done));
        layer.blob.open(&progress).await.map(drop).expect("it is there");
    });
    let told = told.lock().expect("not poisoned");
    assert!(told.len() > 1 && told.is_sorted(), "{told:?}");
    assert_eq!(told.last(), Some(&(made.layers[0].len() as u64)));
}

#[test]
fn of_an_index_the_image_for_this_machine_is_pulled() {
    skip_if!(obstacle());
    let other = Platform { os: "linux".into(), architecture: "s390x".into(), variant: None };
    let ours = small();
    let foreign = Made::for_platform(&[archive(&[("foreign", b"")])], &other);
    let storage = Storage::new();
    storage.push("both:it", &[&foreign, &ours]);
    storage.push("foreign:it", &[&foreign, &foreign]);
    let server = storage.serve(json!({}));
    let client = Client::new();
    now(async {
        let layers = pull(&client.image(&format!("{}/both:it", server.host()), None)).await;
        assert_eq!(layers.expect("one fits"), ours.layers);
        let none = pull(&client.image(&format!("{}/foreign:it", server.host()), None)).await;
        assert!(matches!(none, Err(ImageError::NoPlatform { .. })), "{none:?}");
    });
}

#[test]
fn a_digest_names_an_image_and_what_is_not_there_is_said() {
    skip_if!(obstacle());
    let (storage, made) = (Storage::new(), small());
    storage.push("app:it", &[&made]);
    let server = storage.serve(json!({}));
    let (client, host) = (Client::new(), server.host());
    now(async {
        let digest = Digest::of(&made.manifest);
        let layers = pull(&client.image(&format!("{host}/app@{digest}"), None)).await;
        assert_eq!(layers.expect("it is there"), made.layers);
        for missing in [format!("{host}/app:2"), format!("{host}/none:it")] {
            let problem = registry_error(pull(&client.image(&missing, None)).await);
            assert!(matches!(problem, RegistryError::NotFound { .. }), "{problem}");
            assert!(problem.to_string().contains(&host), "{problem}");
        }
    });
}

#[test]
fn a_registry_with_a_private_certificate_needs_its_authority_and_is_never_asked_in_the_clear() {
    skip_if!(obstacle());
    let (storage, made) = (Storage::new(), small());
    storage.push("app:it", &[&made]);
    let tls = Tls::make(&storage.path(""));
    let server = storage.serve(tls.config());
    let reference = format!("{}/app:it", server.host());
    let roots = Roots::read(&tls.ca).expect("a certificate");
    now(async {
        let knowing = Client::allowing(&["127.0.0.1"], roots);
        assert_eq!(pull(&knowing.image(&reference, None)).await.expect("trusted"), made.layers);
        let problem = registry_error(pull(&Client::new().image(&reference, None)).await);
        assert!(matches!(problem, RegistryError::Untrusted { .. }), "{problem}");
    });
}

#[test]
fn a_password_opens_a_registry_that_asks_for_one() {
    skip_if!(obstacle());
    let (storage, made) = (Storage::new(), small());
    storage.push("app:it", &[&made]);
    let file = storage.path("htpasswd");
    // bcrypt of "hunter2", the only hash that the registry takes.
    let hashed = "ann:$2y$05$L5YiBejMbDtqbnGAt5UkQO91fODgi0upV0yH3aKzsBbhINfbEL9Lu\n";
    std::fs::write(&file, hashed).expect("a file");
    let server = storage.serve(json!({ "auth": { "htpasswd": { "realm": "x", "path": file } } }));
    let reference = format!("{}/app:it", server.host());
    let mut client = Client::new();
    now(async {
        let layers = pull(&client.image(&reference, password("hunter2"))).await;
        assert_eq!(layers.expect("it is right"), made.layers);
        let none = registry_error(pull(&client.image(&reference, None)).await);
        assert!(matches!(none, RegistryError::NeedsCredentials { .. }), "{none}");
        let wrong = registry_error(pull(&client.image(&reference, password("guess"))).await);
        assert!(matches!(wrong, RegistryError::WrongCredentials { .. }), "{wrong}");
        assert!(!format!("{wrong} {wrong:?}").contains("guess"), "{wrong:?}");
    });
    let file = storage.path("config.json");
    let entry = json!({ "username": "ann", "password": "hunter2" });
    std::fs::write(&file, json!({ "auths": { server.host(): entry } }).to_string())
        .expect("a file");
    client.auth_file = Some(file);
    assert_eq!(now(pull(&client.image(&reference, None))).expect("from the file"), made.layers);
}

#[test]
fn a_token_is_had_from_the_realm_that_a_registry_names() {
    skip_if!(obstacle());
    let (storage, made) = (Storage::new(), small());
    storage.push("team/app:it", &[&made]);
    let realm = Realm::start(&storage.path(""), "hunter2");
    let server = storage.serve(realm.config.clone());
    let reference = format!("{}/team/app:it", server.host());
    let client = Client::new();
    now(async {
        let layers = pull(&client.image(&reference, password("hunter2"))).await;
        assert_eq!(layers.expect("it is right"), made.layers);
        assert_eq!(realm.fake.asked().len(), 1, "one token is for all of a pull");
        let none = registry_error(pull(&client.image(&reference, None)).await);
        assert!(matches!(none, RegistryError::NeedsCredentials { .. }), "{none}");
        let wrong = registry_error(pull(&client.image(&reference, password("guess"))).await);
        assert!(matches!(wrong, RegistryError::WrongCredentials { .. }), "{wrong}");
    });
}

#[test]
fn an_identity_that_docker_login_keeps_is_shown_to_the_realm_alone() {
    skip_if!(obstacle());
    let (storage, made) = (Storage::new(), small());
    storage.push("team/app:it", &[&made]);
    let realm = Realm::start(&storage.path(""), "hunter2");
    let server = storage.serve(realm.config.clone());
    let reference = format!("{}/team/app:it", server.host());
    let mut client = Client::new();
    let file = storage.path("config.json");
    let log_in = |identity: &str| {
        // As Docker writes it: a user without a password beside it.
        let entry = json!({ "auth": "YW5uOg==", "identitytoken": identity });
        std::fs::write(&file, json!({ "auths": { server.host(): entry } }).to_string())
            .expect("a file");
    };
    client.auth_file = Some(file.clone());
    log_in(&Realm::identity("hunter2"));
    assert_eq!(now(pull(&client.image(&reference, None))).expect("it is right"), made.layers);
    let asked = realm.fake.asked();
    assert_eq!(asked.len(), 1, "one token is for all of a pull");
    assert!(asked[0].query.is_empty() && asked[0].header("authorization").is_none());
    log_in("stale");
    let wrong = registry_error(now(pull(&client.image(&reference, None))));
    assert!(matches!(wrong, RegistryError::WrongCredentials { .. }), "{wrong}");
    assert!(!format!("{wrong} {wrong:?}").contains("stale"), "{wrong:?}");
}

#[test]
fn a_registry_inside_is_not_called_unless_it_is_allowed() {
    let made = small();
    let content = Content::of(&made);
    let fake = Fake::answering(move |asked| content.answer(asked));
    let (reference, port) = (format!("{}/app:it", fake.address), fake.address.port());
    let refused = |allow: &[&str]| {
        let client = Client::allowing(allow, Roots::default());
        registry_error(now(pull(&client.image(&reference, None))))
    };
    for allow in [&[][..], &["127.0.0.1:1"], &["10.0.0.0/8", "registry.internal"]] {
        let problem = refused(allow);
        let not_public = matches!(problem, RegistryError::Refused(OutgoingError::NotPublic { .. }));
        assert!(not_public && problem.to_string().contains("outgoing_allow"), "{problem}");
    }
    assert_eq!(fake.asked().len(), 0, "it was called all the same");
    let client = Client::allowing(&[&format!("127.0.0.1:{port}")], Roots::default());
    assert_eq!(now(pull(&client.image(&reference, None))).expect("allowed"), made.layers);
}

#[test]
fn a_few_layers_come_at_once_and_no_more() {
    let archives: Vec<_> =
        (0..2 * REGISTRY_DOWNLOADS_MAX as u8).map(|i| archive(&[("n", &[i])])).collect();
    let made = Made::of(&archives);
    let (content, config) = (Content::of(&made), Digest::of(&made.config).to_string());
    // Nobody is answered before as many have asked as may ask at once.
    let full = Arc::new(tokio::sync::Barrier::new(REGISTRY_DOWNLOADS_MAX));
    let (asking, most) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    let seen = Arc::clone(&most);
    let fake = Fake::start(move |asked| {
        let answer = content.answer(&asked);
        if !asked.is_blob() || asked.path.ends_with(&config) {
            return Box::pin(async { answer });
        }
        let (full, asking, most) = (Arc::clone(&full), Arc::clone(&asking), Arc::clone(&most));
        Box::pin(async move {
            let at_once = {
                let mut asking = asking.lock().expect("not poisoned");
                *asking += 1;
                *asking
            };
            let before = *most.lock().expect("not poisoned");
            *most.lock().expect("not poisoned") = at_once.max(before);
            full.wait().await;
            *asking.lock().expect("not poisoned") -= 1;
            answer
        })
    });
    let client = Client::new();
    let layers = now(pull(&client.image(&format!("{}/app:it", fake.address), None)));
    assert_eq!(layers.expect("all of them"), made.layers);
    assert_eq!(*seen.lock().expect("not poisoned"), REGISTRY_DOWNLOADS_MAX);
}

#[test]
fn a_layer_that_two_want_at_once_is_fetched_once() {
    let made = large();
    let content = Content::of(&made);
    let fake = Fake::answering(move |asked| content.answer(asked));
    let client = Client::new();
    let registries = client.registries();
    let reference = format!("{}/app:it", fake.address);
    let owner = Owner::local();
    let space = unlimited();
    let image = || registries.image(reference.parse().expect("a reference"), None, &owner, &space);
    now(async {
        let (one, other) = (image(), image());
        let (one, other) = tokio::join!(pull(&one), pull(&other));
        assert_eq!(
            (one.expect("whole"), other.expect("whole")),
            (made.layers.clone(), made.layers.clone())
        );
    });
    let layer = Digest::of(&made.layers[0]).to_string();
    let fetched = fake.asked().iter().filter(|asked| asked.path.ends_with(&layer)).count();
    assert_eq!(fetched, 1);
}
