//! Every kind of fault with its exact message, and what a good file comes to.

mod faults;
mod good;
mod messengers;
mod routes;
mod store;

use super::{Settings, load_str};

/// A file that is as short as it can be, with one more piece of text at its end.
fn with(more: &str) -> String {
    format!("{SHORTEST}{more}")
}

/// Lines 1 to 9; what `with` adds starts in line 10.
const SHORTEST: &str = r#"[upstream.demo]
builtin = "echo"
[[route]]
id = "first"
path = "/first"
upstream = "demo"
[server]
listen = ["127.0.0.1:8080"]

"#;

fn environment(name: &str) -> Option<String> {
    match name {
        "HOST" => Some("127.0.0.1".to_owned()),
        "PASSWORD" => Some("s3cret".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

fn good(text: &str) -> Settings {
    load_str("t", text, &environment).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn faults(text: &str) -> Vec<String> {
    load_str("t", text, &environment).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

/// Each piece of text, added from line 10 on, makes exactly these faults.
#[track_caller]
fn check(cases: &[(&str, &[&str])]) {
    for (more, expected) in cases {
        assert_eq!(faults(&with(more)), *expected, "{more}");
    }
}
