//! `/api/v1/explain`

use http::{Response, StatusCode};
use serde_json::json;

use super::reply::object;
use crate::explain::{Explainer, Query};

pub(super) fn answer(explainer: &Explainer, query: &str) -> Response<Vec<u8>> {
    match parse(query) {
        Ok(query) => object(StatusCode::OK, &explainer.explain(&query)),
        Err(why) => object(StatusCode::BAD_REQUEST, &json!({ "error": why })),
    }
}

fn parse(query: &str) -> Result<Query, String> {
    let mut request = Query::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match &*name {
            "method" => request.method = value.parse().map_err(|_| format!("method: \"{value}\" is not a method"))?,
            "path" => request.path = value,
            "host" => request.host = Some(value),
            "api_key" => request.api_key = Some(value),
            "ip" => request.ip = Some(value.parse().map_err(|_| format!("ip: \"{value}\" is not an address"))?),
            other => return Err(format!("{other}: unknown, allowed are method, path, host, api_key, ip")),
        }
    }
    if request.path.is_empty() {
        return Err("path: is missing".to_owned());
    }
    Ok(request)
}
