use super::*;

fn allowing(entries: &[&str]) -> Outgoing {
    let allow = entries.iter().map(|entry| entry.parse().expect("an entry")).collect();
    Outgoing::new(allow, Roots::default())
}

async fn admitted(
    outgoing: &Outgoing,
    text: &str,
    chosen: Chosen,
) -> Result<CheckedUrl, OutgoingError> {
    outgoing.admit(&url(text).expect("a URL"), chosen).await
}

#[test]
fn only_what_is_encrypted_or_stays_here_may_be_asked() {
    for good in
        ["https://id.example/x", "http://127.0.0.1:1/x", "http://[::1]/", "http://localhost/"]
    {
        assert!(url(good).is_ok(), "{good}");
    }
    for bad in ["http://id.example/x", "http://10.0.0.1/", "ftp://127.0.0.1/", "id.example", ""] {
        assert!(url(bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_place_that_others_chose_is_not_asked_if_it_is_not_public() {
    for inner in [
        "http://127.0.0.1:9/keys",
        "http://localhost/",
        "https://[::ffff:127.0.0.1]/",
        "https://10.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        // What a URL makes of these is 127.0.0.1.
        "https://2130706433/",
        "https://0x7f.1/",
    ] {
        let refused = admitted(&allowing(&[]), inner, Chosen::ByOthers).await;
        assert!(matches!(refused, Err(OutgoingError::NotPublic { .. })), "{inner}: {refused:?}");
    }
    let public = admitted(&allowing(&[]), "https://8.8.8.8/", Chosen::ByOthers).await;
    assert_eq!(public.expect("it is public").addresses, ["8.8.8.8:443".parse().unwrap()]);
}

#[tokio::test]
async fn what_is_allowed_or_configured_may_be_inside() {
    let here = "http://127.0.0.1:9/";
    assert!(admitted(&allowing(&[]), here, Chosen::ByUs).await.is_ok());
    assert!(admitted(&allowing(&["127.0.0.0/8"]), here, Chosen::ByOthers).await.is_ok());
    assert!(admitted(&allowing(&["127.0.0.1:9"]), here, Chosen::ByOthers).await.is_ok());
    let other_port = admitted(&allowing(&["127.0.0.1:10"]), here, Chosen::ByOthers).await;
    assert!(matches!(other_port, Err(OutgoingError::NotPublic { .. })), "{other_port:?}");
}

#[test]
fn a_shown_url_tells_no_secret() {
    let url = Url::parse("https://ann:pw@cdn.example/blob?X-Amz-Signature=abc#f").expect("a URL");
    assert_eq!(shown(&url).as_str(), "https://cdn.example/blob");
}

#[test]
fn a_file_without_certificates_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ca.pem");
    let missing = Roots::read(&path).expect_err("there is none").to_string();
    std::fs::write(&path, "no certificate").expect("written");
    let empty = Roots::read(&path).expect_err("none in it").to_string();
    for problem in [missing, empty] {
        assert!(problem.contains("ca.pem"), "{problem}");
    }
}
