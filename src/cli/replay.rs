//! `sekisho replay`

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::{INVALID, load};
use crate::config;
use crate::replay::{self, Fault, Line, Sorted};
use crate::rules::read_rule_set;

/// So many bad lines are named; all are counted.
const NAMED: u64 = 5;
/// Lines between two looks at how far it is.
const PROGRESS_EVERY: u64 = 100_000;

#[derive(Debug, Args)]
pub(super) struct Replay {
    /// The access log; `-`: standard input. It has to hold all requests, not a sample.
    #[arg(long)]
    log: PathBuf,
    /// The rules to try: a JSON file, as in `rules.file`.
    #[arg(long)]
    rules: PathBuf,
    /// The configuration whose default rule and costs of routes apply. Without it the built-in default rule applies (20
    /// tokens, 10 a second), and costs are those of the log.
    #[arg(short, long)]
    config: Option<PathBuf>,
    /// How to write the result.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Tell how far it is, also where standard error is no terminal.
    #[arg(long)]
    progress: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people: those with most denials.
    Table,
    /// All, as one JSON object.
    Json,
}

/// What the lines were.
#[derive(Debug, Default)]
struct Lines {
    read: u64,
    unlimited: u64,
    bad: u64,
    bytes: u64,
}

impl Replay {
    pub(super) fn run(&self) -> ExitCode {
        match self.replay() {
            Ok(()) => ExitCode::SUCCESS,
            Err(faults) => {
                faults.iter().for_each(|fault| eprintln!("{fault}"));
                ExitCode::from(INVALID)
            }
        }
    }

    fn replay(&self) -> Result<(), Vec<String>> {
        let one = |fault: String| vec![fault];
        let (limiter, routes) = match &self.config {
            // The faults have been told.
            Some(path) => load(path).map(|settings| (settings.limiter, settings.routes)).map_err(|_| Vec::new())?,
            None => (config::Limiter::default(), Vec::new()),
        };
        let (rules, faults) =
            read_rule_set(&self.rules, limiter.default_rule.clone()).map_err(|error| one(error.to_string()))?;
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut replay = replay::Replay::new(rules, &routes, &limiter).map_err(|error| one(error.to_string()))?;
        let lines = self.read(&mut replay).map_err(one)?;
        let report = replay.report();
        if lines.bad > 0 {
            eprintln!("warning: {} of {} lines are bad and left out", lines.bad, lines.read);
        }
        if report.late > 0 {
            eprintln!("warning: {} requests stand too late in the log to be put in order", report.late);
        }
        if report.total.requests == 0 {
            let log = self.log.display();
            return Err(one(format!("{log}: holds no request to which a limit applied, of {} lines", lines.read)));
        }
        match self.format {
            Format::Table => print!("{report}"),
            Format::Json => {
                let mut answer = json!({ "lines": lines.read, "unlimited": lines.unlimited, "bad": lines.bad });
                if let (Some(answer), serde_json::Value::Object(report)) = (answer.as_object_mut(), json!(report)) {
                    answer.extend(report);
                }
                println!("{answer:#}");
            }
        }
        Ok(())
    }

    /// Decides every request of the log again.
    fn read(&self, replay: &mut replay::Replay) -> Result<Lines, String> {
        let name = self.log.display();
        let unreadable = |error: io::Error| format!("{name}: cannot be read: {error}");
        let (mut input, size) = open(&self.log).map_err(unreadable)?;
        let shows_progress = self.progress || io::stderr().is_terminal();
        let (mut lines, mut sorted, mut line) = (Lines::default(), Sorted::default(), Vec::new());
        loop {
            line.clear();
            let length = input.read_until(b'\n', &mut line).map_err(unreadable)?;
            if length == 0 {
                break;
            }
            lines.read += 1;
            lines.bytes += length as u64;
            match replay::read(&line) {
                Ok(Line::Request(request)) => sorted.push(request, |request| replay.request(request)),
                Ok(Line::Unlimited) => lines.unlimited += 1,
                Err(Fault::Sampled) => return Err(format!("{name}:{}: {}", lines.read, Fault::Sampled)),
                Err(fault) => {
                    lines.bad += 1;
                    if lines.bad <= NAMED {
                        eprintln!("{name}:{}: {fault}", lines.read);
                    }
                }
            }
            if shows_progress && lines.read.is_multiple_of(PROGRESS_EVERY) {
                lines.show_progress(size);
            }
        }
        sorted.finish(|request| replay.request(request));
        Ok(lines)
    }
}

/// The log, and its size where that is known.
fn open(path: &Path) -> io::Result<(Box<dyn BufRead>, Option<u64>)> {
    const BUFFER: usize = 1 << 20;
    if path == Path::new("-") {
        return Ok((Box::new(BufReader::with_capacity(BUFFER, io::stdin())), None));
    }
    let file = File::open(path)?;
    let size = file.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len());
    Ok((Box::new(BufReader::with_capacity(BUFFER, file)), size))
}

impl Lines {
    fn show_progress(&self, size: Option<u64>) {
        match size.filter(|size| *size > 0) {
            Some(size) => eprintln!("{} lines, {} %", self.read, (self.bytes * 100 / size).min(100)),
            None => eprintln!("{} lines", self.read),
        }
    }
}
