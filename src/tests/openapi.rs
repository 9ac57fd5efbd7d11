//! The OpenAPI document is an interface: it is committed, and a change of it is seen in review.

use super::support::root;

#[test]
#[expect(clippy::disallowed_methods, reason = "a switch of this test, for who regenerates the document")]
fn the_committed_document_is_the_codes() {
    let path = root("openapi/openapi.json");
    let made = paravt::api::openapi_json().expect("JSON");
    if std::env::var_os("PARAVT_UPDATE_OPENAPI").is_some() {
        std::fs::create_dir_all(root("openapi")).expect("a folder");
        std::fs::write(&path, &made).expect("written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "run this test with PARAVT_UPDATE_OPENAPI=1 and look at the difference");
}

#[test]
fn every_reference_has_its_schema() {
    let document = serde_json::to_value(paravt::api::openapi()).expect("JSON");
    let text = document.to_string();
    let references: std::collections::BTreeSet<&str> =
        text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(references.len() > 10, "{references:?}");
    for name in references {
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}
