//! Rule tests: what some requests should find, held against rules before they come into force.

mod expected;
mod file;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;
use parking_lot::Mutex;

use self::file::{Expectation, Tenant};
use crate::config::Settings;
use crate::gateway::identity::Identity;
use crate::gateway::path::normalise;
use crate::gateway::reply::Problem;
use crate::gateway::route::{RouteError, RouteRef, Router};
use crate::rules::judge::Judge;
use crate::rules::keys::Keys;
use crate::rules::{FileError, Resolved, RuleSet};

/// Why a file of expectations is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ExpectationsError {
    /// It is not a JSON array.
    #[error("rules.tests: {0}")]
    File(#[from] FileError),
    /// Some of them mean nothing; one line each.
    #[error("{}", .0.join("\n"))]
    Wrong(Vec<String>),
    /// The routes are no routes; a validated configuration has none such.
    #[error(transparent)]
    Routes(#[from] RouteError),
}

/// A file of expectations, and what it takes to find out what a request would find.
#[derive(Debug)]
pub struct Expectations {
    path: PathBuf,
    router: Router,
    identity: Identity,
    header: http::HeaderName,
    list: Mutex<Arc<[Expectation]>>,
}

/// What a request finds.
enum Found<'a> {
    /// It is stopped before any rule is looked for.
    Stopped(Problem),
    /// Its route is exempt.
    Exempt(&'a RouteRef),
    /// These rules apply.
    Limited { route: &'a RouteRef, tenant: String, rules: Resolved<'a>, is_default: bool },
}

impl Expectations {
    /// Reads `path`; `keys` are those by which tenants are known.
    ///
    /// # Errors
    /// See [`ExpectationsError`]: every fault is named with file and line.
    pub fn read(path: &Path, settings: &Settings, keys: &Arc<Keys>) -> Result<Self, ExpectationsError> {
        Ok(Self {
            path: path.to_owned(),
            router: Router::new(&settings.routes)?,
            identity: Identity::new(settings.identity.clone(), Arc::clone(keys)),
            header: settings.identity.header.clone(),
            list: Mutex::new(file::read(path)?.into()),
        })
    }

    fn find<'a>(&'a self, expectation: &Expectation, set: &'a RuleSet) -> Found<'a> {
        self.limits(expectation, set).unwrap_or_else(Found::Stopped)
    }

    /// As the gateway does it, with the same parts.
    fn limits<'a>(&'a self, expectation: &Expectation, set: &'a RuleSet) -> Result<Found<'a>, Problem> {
        let path = expectation.path.split('?').next().unwrap_or_default();
        let path = normalise(path.as_bytes())?;
        let route = self.router.find(expectation.host(), &expectation.method, &path).ok_or(Problem::NotFound)?;
        if !route.limit {
            return Ok(Found::Exempt(route));
        }
        let tenant = match &expectation.tenant {
            Some(Tenant::Id(tenant)) => tenant.clone(),
            Some(Tenant::Key(key)) => {
                let mut headers = expectation.headers.clone();
                let key = HeaderValue::from_bytes(key.as_bytes());
                headers.append(
                    &self.header,
                    key.map_err(|_| Problem::BadRequest("the API key is no header's value".into()))?,
                );
                self.identity.tenant(&headers)?.id().to_owned()
            }
            None => self.identity.tenant(&expectation.headers)?.id().to_owned(),
        };
        let rules = set.resolve(&tenant, &route.id);
        Ok(Found::Limited { route, tenant, rules, is_default: Arc::ptr_eq(rules.enforce, set.default_rule()) })
    }
}

impl Judge for Expectations {
    fn prepare(&self) -> Result<(), String> {
        let list = file::read(&self.path).map_err(|error| error.to_string())?;
        *self.list.lock() = list.into();
        Ok(())
    }

    fn failures(&self, set: &RuleSet) -> Vec<String> {
        let list = Arc::clone(&self.list.lock());
        let failure = |expectation: &Expectation| {
            let differences = expectation.expected.differences(&self.find(expectation, set));
            let place = format!("{}:{}", self.path.display(), expectation.line);
            (!differences.is_empty()).then(|| format!("{place}: {expectation}: {}", differences.join(", ")))
        };
        list.iter().filter_map(failure).collect()
    }
}
