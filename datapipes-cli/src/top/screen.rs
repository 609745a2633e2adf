//! The terminal: keys, and figures once more every half second, on one thread that waits for neither.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapipes::loader::monitor::{Client, Figures};
use datapipes::{BoxError, ErrorKind};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::draw;
use super::view::{Base, Contact, View};

/// Time between two questions.
const ASK: Duration = Duration::from_millis(500);
/// Time that a key may have to wait.
const TICK: Duration = Duration::from_millis(50);
/// Time without an answer after which that is said.
const SILENT: Duration = Duration::from_secs(2);

/// Shows loaders of a process, this one first, until the user ends it.
pub fn watch(sockets: &[PathBuf], at: usize) -> Result<(), BoxError> {
    let stopped = Arc::new(AtomicBool::new(false));
    // SIGHUP ends the program at once: the terminal is gone, and reading its keys may never return. A
    // second signal of the other kinds does, too.
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stopped.clone())?;
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    let mut link = Link::to(&sockets[at])?;
    // It restores the terminal if this program panics.
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &stopped, sockets, at, &mut link);
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    stopped: &AtomicBool,
    sockets: &[PathBuf],
    mut at: usize,
    link: &mut Link,
) -> Result<(), BoxError> {
    let mut view = View::new(&sockets[at], None, sockets.len());
    let mut has_changed = true;
    while !stopped.load(Ordering::Relaxed) {
        if link.turn(&mut view) || has_changed {
            terminal.draw(|frame| draw::draw(frame, &mut view))?;
        }
        has_changed = event::poll(TICK)?;
        if !has_changed {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => match press(key, &mut view) {
                Pressed::End => break,
                Pressed::Next if sockets.len() > 1 => {
                    at = (at + 1) % sockets.len();
                    view = View::new(&sockets[at], None, sockets.len());
                    match Link::to(&sockets[at]) {
                        Ok(other) => *link = other,
                        Err(error) => {
                            link.client = None;
                            view.contact = Contact::Lost(error.to_string());
                        }
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }
    Ok(())
}

/// Request of a key to the main loop.
#[derive(Debug, PartialEq, Eq)]
pub enum Pressed {
    Nothing,
    End,
    Next,
}

/// Does what a key is for.
pub fn press(key: KeyEvent, view: &mut View) -> Pressed {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Pressed::End,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Pressed::End,
        KeyCode::Tab => return Pressed::Next,
        KeyCode::Char('p' | ' ') => view.is_paused = !view.is_paused,
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Char('r') => view.reset(),
        KeyCode::Char('e') => view.base = Base::Epoch,
        KeyCode::Char('l') => view.base = Base::Recent,
        KeyCode::Down | KeyCode::Char('j') => view.scrolled += 1,
        KeyCode::Up | KeyCode::Char('k') => view.scrolled = view.scrolled.saturating_sub(1),
        _ => {}
    }
    Pressed::Nothing
}

/// The connection to a loader.
struct Link {
    /// None if the loader has ended.
    client: Option<Client>,
    asked: Instant,
    is_waiting: bool,
}

impl Link {
    fn to(socket: &PathBuf) -> Result<Link, BoxError> {
        let mut client = Client::connect(socket)?;
        client.ask()?;
        Ok(Link {
            client: Some(client),
            asked: Instant::now(),
            is_waiting: true,
        })
    }

    /// Takes the answer if it is there, and asks again when it is time. Returns true if the view has
    /// changed.
    fn turn(&mut self, view: &mut View) -> bool {
        self.try_turn(view).unwrap_or_else(|error| {
            self.client = None;
            view.contact = Contact::Lost(match error.kind() {
                ErrorKind::NotFound => "it has ended".to_owned(),
                _ => error.to_string(),
            });
            true
        })
    }

    fn try_turn(&mut self, view: &mut View) -> datapipes::Result<bool> {
        let Some(client) = &mut self.client else {
            return Ok(false);
        };
        let mut has_changed = false;
        if self.is_waiting {
            match client.answer(Duration::ZERO)? {
                Some(line) => {
                    (self.is_waiting, has_changed) = (false, true);
                    view.update(Figures::parse(&line)?);
                }
                None if self.asked.elapsed() > SILENT => {
                    view.contact = Contact::Silent(self.asked.elapsed());
                    has_changed = true;
                }
                None => {}
            }
        }
        if !self.is_waiting && self.asked.elapsed() >= ASK {
            (self.asked, self.is_waiting) = (Instant::now(), true);
            client.ask()?;
        }
        Ok(has_changed)
    }
}
