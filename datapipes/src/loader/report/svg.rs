//! Pictures as SVG, and figures as texts.

use std::time::Duration;

/// Number of colours.
pub(super) const COLORS: usize = 8;
/// Looks of the elements of pictures, on a light page.
pub(super) const STYLE: &str = include_str!("picture.css");

/// A picture in coordinates of its own, from the upper left corner on.
pub(in crate::loader) struct Picture {
    /// Name of its file, without `.svg`.
    pub name: String,
    /// Description for those who cannot see it, and the title of the file.
    pub title: String,
    pub width: f64,
    pub height: f64,
    pub elements: String,
}

impl Picture {
    /// Returns the element for a page that has the [style](STYLE).
    pub fn inline(&self) -> String {
        let (width, height, title) = (self.width, self.height, escape(&self.title));
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" role=\"img\" aria-label=\"{title}\">{}</svg>",
            self.elements
        )
    }

    /// Returns a file of its own.
    pub fn file(&self) -> String {
        let (width, height, title) = (self.width, self.height, escape(&self.title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
             <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n{}\n</svg>\n",
            self.elements
        )
    }
}

/// Appends a text that begins (or ends, or is centred, by its class) at a place.
pub(in crate::loader) fn text(to: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    *to += &format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
        escape(text)
    );
}

/// Appends a rectangle; each class is one of the style's.
pub(in crate::loader) fn rect(
    to: &mut String,
    class: &str,
    (x, y, width, height): (f64, f64, f64, f64),
) {
    let round = (width.min(height) / 4.0).min(3.0);
    *to += &format!(
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{round:.1}\"/>"
    );
}

/// Returns a text for HTML and SVG, inside or outside of quotes. Letters that XML does not allow are
/// replaced.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(letter),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                escaped.push('\u{fffd}');
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Returns the first letters of a text, with an ellipsis if there are more.
pub(super) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Returns a whole number with its thousands apart.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut apart = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            apart.push('\u{202f}');
        }
        apart.push(digit);
    }
    apart
}

/// Returns a number with three digits that count.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value >= 999.5 => count(value.round() as u64),
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value <= 0.0 => "0".to_owned(),
        value => format!("{value:.2}"),
    }
}

/// Returns a duration with a unit that fits.
pub(in crate::loader) fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        seconds if seconds >= 60.0 => {
            let whole = seconds.round() as u64;
            let (hours, minutes) = (whole / 3600, whole / 60 % 60);
            match hours {
                0 => format!("{minutes} min {:02} s", whole % 60),
                _ => format!("{hours} h {minutes:02} min"),
            }
        }
        seconds if seconds >= 1.0 => format!("{} s", number(seconds)),
        seconds if seconds >= 1e-3 => format!("{} ms", number(seconds * 1e3)),
        seconds if seconds >= 1e-6 => format!("{} µs", number(seconds * 1e6)),
        seconds => format!("{:.0} ns", seconds * 1e9),
    }
}

/// Returns a share in percent.
pub(in crate::loader) fn percent(share: f64) -> String {
    match share * 100.0 {
        tiny if tiny > 0.0 && tiny < 0.05 => "< 0.1 %".to_owned(),
        small if small > 0.0 && small < 9.95 => format!("{small:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// Returns bytes in MiB, or in a smaller unit if they are few.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", number(bytes as f64 / 1024.0)),
        _ => format!("{} MiB", number(bytes as f64 / f64::from(1 << 20))),
    }
}
