//! `${NAME}` and `${NAME:-default}` in strings.

/// Looks up an environment variable.
pub(super) type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Replaces every `${NAME}` by the variable's value, and every `${NAME:-default}` by the value or, where that is unset
/// or empty (as in a shell), by the default. A `$` without `{` is itself.
///
/// # Errors
/// One sentence that names the variable, never a value.
pub(super) fn expand(text: &str, environment: Environment<'_>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        let (inside, after) = after
            .split_once('}')
            .ok_or("\"${\" has no \"}\", allowed are \"${NAME}\" and \"${NAME:-default}\"".to_owned())?;
        expanded.push_str(&value(inside, environment)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

fn value(inside: &str, environment: Environment<'_>) -> Result<String, String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    if !is_name(name) {
        // Not repeated: it may be part of a password that happens to contain "${".
        return Err("\"${…}\" holds no name of an environment variable, allowed are letters, digits and _, as in \
                    \"${NAME}\" and \"${NAME:-default}\""
            .to_owned());
    }
    match (environment(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!(
            "environment variable {name} is not set, set it or give a default as in \"${{{name}:-default}}\""
        )),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
