//! `sekisho explain`: which limits a request would find, and why.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::{ConfigFile, INVALID, load, loader};
use crate::explain::{Explainer, Query};

#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    file: ConfigFile,
    /// The request's method.
    #[arg(long)]
    method: Method,
    /// The request's path.
    #[arg(long)]
    path: String,
    /// The request's host.
    #[arg(long)]
    host: Option<String>,
    /// The API key.
    #[arg(long)]
    api_key: Option<String>,
    /// The address it comes from.
    #[arg(long)]
    ip: Option<IpAddr>,
    /// A header, 'Name: value'; may be repeated.
    #[arg(short = 'H', long = "header", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("allowed is 'Name: value'")?;
    let name = name.trim().parse().map_err(|_| format!("\"{}\" is not a header's name", name.trim()))?;
    let value = value.trim().parse().map_err(|_| "not a header's value".to_owned())?;
    Ok((name, value))
}

impl Explain {
    pub(super) fn run(self) -> ExitCode {
        let settings = match load(&self.file.config) {
            Ok(settings) => settings,
            Err(code) => return code,
        };
        let loader = loader(&settings);
        let explainer = loader
            .initial_load()
            .map_err(|error| error.to_string())
            .and_then(|()| Explainer::new(&settings, loader.rules(), loader.keys()).map_err(|error| error.to_string()));
        let explainer = match explainer {
            Ok(explainer) => explainer,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(INVALID);
            }
        };
        let query = Query {
            method: self.method,
            path: self.path,
            host: self.host,
            api_key: self.api_key,
            ip: self.ip,
            headers: HeaderMap::from_iter(self.headers),
        };
        println!("{:#}", explainer.explain(&query));
        ExitCode::SUCCESS
    }
}
