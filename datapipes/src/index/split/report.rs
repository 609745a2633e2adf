//! The table of the contents of each part.

use std::fmt;

use super::Splits;

/// Number of classes shown; the rest are counted.
const SHOWN: usize = 6;

/// Writes a line for each part: its number of samples, their percentage of all samples, and the
/// number of its entities. For each class it has the number of samples and their percentage of the
/// part. Deviations are in points: of a part from its wanted percentage, of a class from its
/// percentage in all parts.
impl<K> fmt::Display for Splits<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.classes.len().min(SHOWN);
        let mut head = vec![
            "part".to_owned(),
            "samples".to_owned(),
            "entities".to_owned(),
        ];
        let named = |class: &Option<String>| match class {
            Some(class) => format!("{} {class}", self.class_column),
            None => format!("no {}", self.class_column),
        };
        head.extend(self.classes[..shown].iter().map(named));
        let mut rows = vec![head];
        let in_parts: usize = self.parts.iter().map(|part| part.keys.len()).sum();
        let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
        let cell = |count: usize, percent: f64, wanted: f64| {
            // No sign before a value that is shown as 0.
            let off = ((percent - wanted) * 10.0).round() / 10.0 + 0.0;
            format!("{count} {percent:5.1} % ({off:+.1})")
        };
        for part in &self.parts {
            let count = part.keys.len();
            let mut row = vec![part.name.clone()];
            row.push(cell(
                count,
                percent(count, self.considered),
                100.0 * part.fraction,
            ));
            row.push(part.entities.to_string());
            for (class, &of_class) in part.classes[..shown].iter().enumerate() {
                let whole: usize = self.parts.iter().map(|part| part.classes[class]).sum();
                row.push(cell(
                    of_class,
                    percent(of_class, count),
                    percent(whole, in_parts),
                ));
            }
            rows.push(row);
        }
        let width = |column: usize| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        for row in &rows {
            let mut line = format!("{:<1$}", row[0], widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line += &format!("  {cell:>width$}");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        if self.classes.len() > shown {
            writeln!(f, "and {} more classes", self.classes.len() - shown)?;
        }
        if !self.left_out.is_empty() {
            writeln!(f, "left out: {}", self.left_out.len())?;
        }
        for warning in self.warnings() {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}
