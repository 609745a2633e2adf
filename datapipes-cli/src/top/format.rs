//! Numbers and names as a person reads them.

use std::time::Duration;

/// Returns a number of things a second, in at most seven characters.
pub fn rate(per_second: f64) -> String {
    match per_second {
        n if n < 1e3 => format!("{n:.1}"),
        n if n < 1e6 => format!("{:.1} k", n / 1e3),
        n if n < 1e9 => format!("{:.1} M", n / 1e6),
        n => format!("{:.1} G", n / 1e9),
    }
}

/// Returns a number with spaces between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of bytes in a binary unit.
pub fn bytes(number: u64) -> String {
    match number {
        n if n < 1 << 10 => format!("{n} B"),
        n if n < 1 << 20 => format!("{:.1} KiB", n as f64 / 1024.0),
        n if n < 1 << 30 => format!("{:.1} MiB", n as f64 / f64::from(1 << 20)),
        n => format!("{:.1} GiB", n as f64 / f64::from(1 << 30)),
    }
}

/// Returns a duration in a unit that fits, in at most eight characters.
pub fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1} s"),
        _ => clock(time),
    }
}

/// Returns a duration as hours, minutes and seconds.
pub fn clock(time: Duration) -> String {
    let s = time.as_secs();
    let (hours, minutes, seconds) = (s / 3600, s / 60 % 60, s % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Returns a text without characters that a terminal would obey.
pub fn clean(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '�' } else { c };
    text.chars().map(shown).collect()
}
