//! Shows what ranks write.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, IsTerminal, Result, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice, stream::RawStream};
use anstyle::{AnsiColor, Style};
use distcollective::Rank;
use distcollective_launch::{JobControl, RankOutput};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::SIGTERM;

/// The output of a job's ranks. If it cannot be written, the job ends, except on a terminal: one
/// that is gone sends SIGHUP, which ends the job in its own way.
#[derive(Clone)]
pub struct Output {
    control: JobControl,
    /// Whether a reader of the output has closed it.
    is_closed: Arc<AtomicBool>,
    /// Whether it cannot be written, with an error that the job returns.
    has_failed: Arc<AtomicBool>,
}

/// Whether lines begin with the number of their rank.
#[derive(Clone, Copy)]
pub enum Prefix {
    None,
    Plain,
    Coloured,
}

/// The files of all ranks, if there are any.
type Logs = Option<Arc<Vec<File>>>;

impl Prefix {
    /// Coloured on a terminal, unless variables such as `NO_COLOR` say otherwise.
    pub fn of(stream: &impl RawStream, with_prefix: bool) -> Self {
        match AutoStream::choice(stream) {
            _ if !with_prefix => Prefix::None,
            ColorChoice::Never => Prefix::Plain,
            _ => Prefix::Coloured,
        }
    }

    fn text(self, rank: Rank) -> String {
        const COLOURS: [AnsiColor; 6] =
            [AnsiColor::Cyan, AnsiColor::Yellow, AnsiColor::Green, AnsiColor::Magenta, AnsiColor::Blue, AnsiColor::Red];
        match self {
            Prefix::None => String::new(),
            Prefix::Plain => format!("[{rank}] "),
            Prefix::Coloured => {
                let style: Style = COLOURS[rank.index() % COLOURS.len()].on_default();
                format!("{style}[{rank}]{style:#} ")
            }
        }
    }
}

impl Output {
    /// The output of a job that this control ends.
    pub fn new(control: JobControl) -> Self {
        Output { control, is_closed: Arc::default(), has_failed: Arc::default() }
    }

    /// One stream of the ranks, which goes to a stream of this process, and to files.
    pub fn stream<W: Write + Send + IsTerminal>(&self, to: W, prefix: Prefix, logs: Logs) -> Stream<W> {
        // A terminal that is gone no longer says that it is one.
        let is_terminal = to.is_terminal();
        Stream { output: self.clone(), is_terminal, to, prefix, logs, line: Line::Ended, begun: BTreeMap::new() }
    }

    /// Ends the job as soon as the reader of standard output has closed it, even if no rank writes
    /// then.
    pub fn end_when_stdout_closes(&self) -> Result<()> {
        if std::io::stdout().is_terminal() {
            return Ok(());
        }
        let output = self.clone();
        let watch = move || {
            let stdout = std::io::stdout();
            let mut stream = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty())];
            // Without a flag to wait for, only an error or the end of the reader is an event.
            let waited = rustix::io::retry_on_intr(|| poll(&mut stream, None));
            if waited.is_ok() && stream[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
                output.close();
            }
        };
        std::thread::Builder::new().name("stdout".to_owned()).spawn(watch).map(drop)
    }

    /// A reader has closed the output: nothing more is shown, and the job ends.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        // Ctrl-C often ends the reader together with the ranks. They still have time to end.
        self.control.end_once(SIGTERM);
    }

    /// Whether a reader of the output has closed it, so that the job was ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether the job's error is that the output cannot be written.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }
}

/// A file for each rank in a folder, which is made if there is none.
pub fn log_files(folder: &Path, ranks: u32) -> std::result::Result<Arc<Vec<File>>, String> {
    let failed = |path: &Path, e: Error| format!("--log-dir {}: {e}", path.display());
    std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    let create = |rank: u32| {
        let path = folder.join(format!("rank{rank}.log"));
        File::create(&path).map_err(|e| failed(&path, e))
    };
    (0..ranks).map(create).collect::<std::result::Result<_, _>>().map(Arc::new)
}

/// One stream of a job's ranks.
pub struct Stream<W> {
    output: Output,
    is_terminal: bool,
    to: W,
    prefix: Prefix,
    logs: Logs,
    line: Line,
    /// Lines without a prefix that have not ended. They are shown when they are whole: lines of
    /// other ranks may come between their parts.
    begun: BTreeMap<Rank, Vec<u8>>,
}

/// The most bytes of a begun line. A longer one is shown in parts.
const MAX_BEGUN: usize = 1 << 20;

/// Where the last text ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// After a line's end.
    Ended,
    /// At the beginning of a line that this rank writes again: after a carriage return.
    Returned(Rank),
    /// Within a line of this rank.
    Open(Rank),
}

impl Line {
    fn rank(self) -> Option<Rank> {
        match self {
            Line::Ended => None,
            Line::Returned(rank) | Line::Open(rank) => Some(rank),
        }
    }

    /// Adds text of a rank to `out`. Each line, and each form of a line that is written again, gets
    /// the prefix. A line that another rank has begun ends first.
    fn add(&mut self, out: &mut Vec<u8>, rank: Rank, prefix: &str, text: &[u8]) {
        if self.rank().is_some_and(|other| other != rank) {
            out.push(b'\n');
            *self = Line::Ended;
        }
        for piece in text.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let is_return_and_end = *self == Line::Returned(rank) && piece == b"\n";
            if *self != Line::Open(rank) && !is_return_and_end {
                out.extend_from_slice(prefix.as_bytes());
            }
            out.extend_from_slice(piece);
            *self = match piece.last() {
                Some(b'\n') => Line::Ended,
                Some(b'\r') => Line::Returned(rank),
                _ => Line::Open(rank),
            };
        }
    }
}

impl<W: Write + Send> Stream<W> {
    /// Writes text to the log of a rank, and then to the stream.
    fn pass_on(&mut self, rank: Rank, text: &[u8]) -> Result<()> {
        if let Some(logs) = &self.logs {
            let written = (&logs[rank.index()]).write_all(text);
            written.map_err(|e| Error::new(e.kind(), format!("the log of rank {rank}: {e}")))?;
        }
        if !matches!(self.prefix, Prefix::None) {
            return self.show_of(rank, text);
        }
        let begun = self.begun.entry(rank).or_default();
        begun.extend_from_slice(text);
        let end = begun.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        let rest = begun.split_off(if begun.len() - end > MAX_BEGUN { begun.len() } else { end });
        let whole = std::mem::replace(begun, rest);
        self.show_of(rank, &whole)
    }

    /// Shows text of a rank, with prefixes if there are some.
    fn show_of(&mut self, rank: Rank, text: &[u8]) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut out = Vec::with_capacity(text.len() + text.len() / 8);
        self.line.add(&mut out, rank, &self.prefix.text(rank), text);
        self.show(&out)
    }

    /// Ends the line of a rank, if it has begun one.
    fn end_line(&mut self, rank: Rank) -> Result<()> {
        let begun = self.begun.remove(&rank).unwrap_or_default();
        self.show_of(rank, &begun)?;
        if self.line.rank() != Some(rank) {
            return Ok(());
        }
        self.line = Line::Ended;
        self.show(b"\n")
    }

    fn show(&mut self, text: &[u8]) -> Result<()> {
        if self.output.is_closed() {
            return Ok(());
        }
        match self.to.write_all(text).and_then(|()| self.to.flush()) {
            Err(_) if self.is_terminal => Ok(()),
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                self.output.close();
                Ok(())
            }
            result => result,
        }
    }
}

impl<W: Write + Send> RankOutput for Stream<W> {
    fn write(&mut self, rank: Rank, text: &[u8]) -> Result<()> {
        self.pass_on(rank, text).inspect_err(|_| self.output.has_failed.store(true, Ordering::Release))
    }

    fn closed(&mut self, rank: Rank) -> Result<()> {
        self.end_line(rank).inspect_err(|_| self.output.has_failed.store(true, Ordering::Release))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(texts: &[(u32, &str)]) -> String {
        let (mut line, mut out) = (Line::Ended, Vec::new());
        for (rank, text) in texts {
            line.add(&mut out, Rank(*rank), &Prefix::Plain.text(Rank(*rank)), text.as_bytes());
        }
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn every_line_has_one_prefix() {
        assert_eq!(shown(&[(0, "a\nb\n"), (1, "c\n")]), "[0] a\n[0] b\n[1] c\n");
        assert_eq!(shown(&[(0, "a"), (0, "b\n"), (0, "\n")]), "[0] ab\n[0] \n");
        // Another rank writes while a line is open.
        assert_eq!(shown(&[(0, "a"), (1, "b\n"), (0, "c\n")]), "[0] a\n[1] b\n[0] c\n");
        // Lines that are written again.
        assert_eq!(shown(&[(0, "1%\r2%\r"), (0, "3%\r\n")]), "[0] 1%\r[0] 2%\r[0] 3%\r\n");
        assert_eq!(shown(&[(0, "1%\r"), (1, "b\n"), (0, "2%\r")]), "[0] 1%\r\n[1] b\n[0] 2%\r");
    }
}
