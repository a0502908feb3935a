//! Where the lines go.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::Duration;

use crate::config::LogTarget;
use crate::metrics;
use crate::telemetry::Seldom;

/// How often a fault is told.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A file, opened when it is first written to and whenever it could not be opened before; or standard output.
#[derive(Debug)]
pub(super) struct Sink {
    target: LogTarget,
    file: Option<File>,
    /// The last write ended within a line.
    is_torn: bool,
    faults: Seldom,
}

impl Sink {
    pub(super) fn new(target: LogTarget) -> Self {
        Self { target, file: None, is_torn: false, faults: Seldom::new(TELL_EVERY) }
    }

    /// Writes whole lines; those that cannot be written are counted.
    pub(super) fn write(&mut self, block: &[u8], lines: u64) {
        let (written, error) = self.try_write(block);
        if let Some(error) = error {
            let lost = lines - block[..written].iter().filter(|&&byte| byte == b'\n').count() as u64;
            self.is_torn = block[..written].last().map_or(self.is_torn, |&byte| byte != b'\n');
            metrics::ACCESS_LOG_DROPPED.inc_by(lost);
            self.tell(&error);
        }
    }

    /// Opens the file anew. Where that is not possible, the one that is open goes on.
    pub(super) fn open_anew(&mut self) {
        match open(&self.target) {
            Ok(Some(file)) => (self.file, self.is_torn) = (Some(file), false),
            Ok(None) => {}
            Err(error) => self.tell(&error),
        }
    }

    /// Says how many bytes of the block were written.
    fn try_write(&mut self, block: &[u8]) -> (usize, Option<io::Error>) {
        if self.file.is_none() {
            match open(&self.target) {
                Ok(file) => self.file = file,
                Err(error) => return (0, Some(error)),
            }
        }
        let output: &mut dyn Write = match &mut self.file {
            Some(file) => file,
            None => &mut io::stdout(),
        };
        if std::mem::take(&mut self.is_torn)
            && let Err(error) = output.write_all(b"\n")
        {
            self.is_torn = true;
            return (0, Some(error));
        }
        let mut written = 0;
        while written < block.len() {
            match output.write(&block[written..]) {
                Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Some(error)),
            }
        }
        let flushed = output.flush();
        (written, flushed.err())
    }

    fn tell(&self, error: &io::Error) {
        if let Some(times) = self.faults.tell() {
            tracing::error!(%error, times, "the access log cannot be written: {}", self.target);
        }
    }
}

/// `None`: standard output.
fn open(target: &LogTarget) -> io::Result<Option<File>> {
    match target {
        LogTarget::Stdout => Ok(None),
        LogTarget::File(path) => OpenOptions::new().append(true).create(true).open(path).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_written_to_until_it_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
        let mut sink = Sink::new(LogTarget::File(path.clone()));
        sink.write(b"1\n", 1);
        std::fs::rename(&path, &moved).unwrap();
        sink.write(b"2\n", 1);
        sink.open_anew();
        sink.write(b"3\n", 1);
        assert_eq!(std::fs::read_to_string(moved).unwrap(), "1\n2\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "3\n");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_the_file_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let mut sink = Sink::new(LogTarget::File(missing.join("access.log")));
        let before = metrics::ACCESS_LOG_DROPPED.get();
        sink.write(b"1\n2\n", 2);
        assert!(metrics::ACCESS_LOG_DROPPED.get() >= before + 2);
        std::fs::create_dir(&missing).unwrap();
        sink.write(b"3\n", 1);
        assert_eq!(std::fs::read_to_string(missing.join("access.log")).unwrap(), "3\n");
    }

    #[test]
    fn a_full_disk_loses_lines_and_nothing_else() {
        let mut sink = Sink::new(LogTarget::File("/dev/full".into()));
        let before = metrics::ACCESS_LOG_DROPPED.get();
        sink.write(b"1\n", 1);
        sink.write(b"2\n", 1);
        assert!(metrics::ACCESS_LOG_DROPPED.get() >= before + 2);
    }

    #[test]
    fn a_line_that_was_torn_is_ended_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        std::fs::write(&path, "{\"time\":").unwrap();
        let mut sink = Sink { is_torn: true, ..Sink::new(LogTarget::File(path.clone())) };
        sink.write(b"1\n", 1);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "{\"time\":\n1\n");
    }
}
