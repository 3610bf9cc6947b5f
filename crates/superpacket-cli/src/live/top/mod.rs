//! `superpacket top`: shows the rates of a running bridge and keeps them up to date.

mod history;
mod rates;
mod screen;

use std::io::{self, IsTerminal, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use superpacket_daemon::control::{Client, ClientError};

use self::rates::BridgeSample;
use self::screen::{Screen, draw};
use super::connection::{ControlOptions, connect};
use crate::amount::nanoseconds;
use crate::failure::Failure;
use crate::report::print_json;
use crate::signals;

/// The arguments of `superpacket top`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopArguments {
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Time between two updates
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) interval: u64,
    /// Print the rates of one interval as JSON, and exit
    #[arg(short, long)]
    pub(crate) json: bool,
}

fn interval(text: &str) -> Result<u64, String> {
    match nanoseconds(text)? {
        nanoseconds @ 100_000_000..=3_600_000_000_000 => Ok(nanoseconds),
        _ => Err("from 100ms to 3600s".into()),
    }
}

/// Shows the rates of the bridge until `q` is pressed, or prints those of one interval as JSON.
pub(crate) fn run(arguments: &TopArguments) -> Result<(), Failure> {
    let interval = Duration::from_nanos(arguments.interval);
    let mut client = connect(&arguments.connection)?;
    if arguments.json {
        let previous = sample(&mut client)?;
        std::thread::sleep(interval);
        let rates = sample(&mut client)?.since(&previous);
        return Ok(print_json(&rates)?);
    }
    if !stdout().is_terminal() {
        return Err(Failure::Usage("standard output is not a terminal: use --json".into()));
    }
    let ending = Arc::new(AtomicBool::new(false));
    for signal in signals::ending() {
        signal_hook::flag::register(signal, ending.clone())?;
    }
    end_with_terminal(ending.clone())?;
    let mut view = TopView {
        path: client.path().to_owned(),
        client: Some(client),
        previous: None,
        screen: Screen::new(interval),
        interval,
    };
    // From here on the terminal is in raw mode. It is restored even if an error occurs.
    let mut terminal = ratatui::try_init()?;
    let result = view.run(&mut terminal, &ending);
    ratatui::try_restore()?;
    result
}

/// Starts a thread that ends the program when the terminal is closed. The main thread cannot notice
/// this: crossterm retries at the end of file and never returns.
///
/// # Errors
/// If the thread cannot be started.
fn end_with_terminal(ending: Arc<AtomicBool>) -> io::Result<()> {
    /// Time that the main thread has to restore the terminal and end by itself, before the process
    /// is ended.
    const GRACE: Duration = Duration::from_secs(1);
    let watch = move || {
        while !ending.load(Ordering::Relaxed) {
            // If standard input is no terminal, its end does not matter.
            if is_closed(stdout().as_fd()) || (stdin().is_terminal() && is_closed(stdin().as_fd()))
            {
                ending.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        std::thread::sleep(GRACE);
        std::process::exit(i32::from(crate::INTERRUPTED));
    };
    std::thread::Builder::new().name("terminal".into()).spawn(watch).map(drop)
}

/// Returns whether a terminal was closed (`POLLHUP`).
fn is_closed(terminal: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::new(&terminal, PollFlags::empty())];
    poll(&mut waiting, Some(&Timespec::default())).is_ok()
        && waiting[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn sample(client: &mut Client) -> Result<BridgeSample, ClientError> {
    Ok(BridgeSample {
        taken_at: Instant::now(),
        ports: client.ports(None)?,
        stats: client.stats(None)?,
        features: client.features(None)?,
    })
}

/// The state of a running `superpacket top`.
struct TopView {
    path: PathBuf,
    /// The connection to the bridge; `None` while the bridge cannot be reached.
    client: Option<Client>,
    previous: Option<BridgeSample>,
    screen: Screen,
    interval: Duration,
}

impl TopView {
    fn run(&mut self, terminal: &mut DefaultTerminal, ending: &AtomicBool) -> Result<(), Failure> {
        let mut next = Instant::now();
        while !ending.load(Ordering::Relaxed) {
            if next <= Instant::now() {
                self.update();
                next = Instant::now() + self.interval;
            }
            terminal.draw(|frame| draw(frame, &mut self.screen))?;
            // The timeout is short, so that a signal is noticed soon.
            if event::poll(
                next.saturating_duration_since(Instant::now()).min(Duration::from_millis(200)),
            )? {
                match event::read()? {
                    Event::Key(key)
                        if key.kind == KeyEventKind::Press && self.screen.press(key) =>
                    {
                        return Ok(());
                    }
                    // All other events, such as a new terminal size, take effect at the next
                    // redraw.
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Reads the counters of the bridge. If the bridge cannot be reached, shows the error and tries
    /// to connect again at the next call.
    fn update(&mut self) {
        let result = match &mut self.client {
            Some(client) => sample(client),
            None => Client::connect(&self.path).and_then(|mut client| {
                let sample = sample(&mut client)?;
                self.client = Some(client);
                Ok(sample)
            }),
        };
        self.screen.title = self.path.display().to_string();
        match result {
            Ok(sample) => {
                self.screen.problem = None;
                // Nothing was read before the first sample, so it shows the totals, and rates of 0.
                match &self.previous {
                    Some(previous) => {
                        self.screen.show(sample.since(previous));
                        self.screen.record();
                    }
                    None => self.screen.show(sample.since(&sample)),
                }
                self.previous = Some(sample);
            }
            Err(error) => {
                self.screen.problem = Some(error.to_string());
                self.screen.record_nothing();
                self.client = None;
                // A bridge that was restarted counts from zero.
                self.previous = None;
            }
        }
    }
}

impl Screen {
    /// Handles a key that was pressed, and returns `true` if the program is to end.
    fn press(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            // In raw mode the terminal does not turn Ctrl-C into a signal.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::PageUp => self.scroll(-10),
            KeyCode::PageDown => self.scroll(10),
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("1s"), Ok(1_000_000_000));
        assert!(interval("1ms").is_err() && interval("2h").is_err());
    }
}
