//! Text with tabs becomes aligned columns, as Go's tabwriter does it for kubectl: a column spans consecutive
//! lines that have it.
//!
//! Owns alignment.

/// Spaces after the widest cell of a column.
const PADDING: usize = 2;

/// Text with tabs between columns.
#[derive(Default)]
pub(super) struct Tabbed {
    lines: Vec<Vec<String>>,
}

impl Tabbed {
    /// Adds a line, indented by `level` times two spaces. Its cells are separated by tabs; text from users
    /// and workloads must be passed through [`super::table::printable`] first.
    pub(super) fn line(&mut self, level: usize, text: &str) {
        let text = format!("{}{text}", "  ".repeat(level));
        self.lines.push(text.split('\t').map(str::to_owned).collect());
    }

    /// The aligned text.
    pub(super) fn finish(&self) -> String {
        let mut text = String::new();
        let mut widths: Vec<Vec<usize>> = vec![Vec::new(); self.lines.len()];
        self.measure(0..self.lines.len(), 0, &mut widths);
        for (line, widths) in self.lines.iter().zip(&widths) {
            for (position, cell) in line.iter().enumerate() {
                text.push_str(cell);
                if let Some(width) = widths.get(position) {
                    text.extend(std::iter::repeat_n(' ', width - cell.chars().count()));
                }
            }
            text.push('\n');
        }
        text
    }

    /// The widths of columns from `column` on, for each line of the range. The last cell of a line belongs to
    /// no column.
    fn measure(&self, range: std::ops::Range<usize>, column: usize, widths: &mut [Vec<usize>]) {
        let has_it = |line: usize| self.lines[line].len() > column + 1;
        let mut start = range.start;
        while start < range.end {
            if !has_it(start) {
                start += 1;
                continue;
            }
            let end = (start..range.end).find(|line| !has_it(*line)).unwrap_or(range.end);
            let cells = self.lines[start..end].iter().map(|line| line[column].chars().count());
            let width = cells.max().unwrap_or_default() + PADDING;
            for widths in &mut widths[start..end] {
                widths.push(width);
            }
            self.measure(start..end, column + 1, widths);
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_reaches_as_far_as_consecutive_lines_have_it() {
        let mut text = Tabbed::default();
        for (level, line) in [
            (0, "Name:\tweb"),
            (0, "A longer one:\tx"),
            (0, "\tbelow"),
            (0, "Containers:"),
            (1, "a:\tb\tc"),
            (1, "long:\tlonger\td"),
            (1, "e:\tf"),
        ] {
            text.line(level, line);
        }
        let expected = "\
Name:          web
A longer one:  x
               below
Containers:
  a:     b       c
  long:  longer  d
  e:     f
";
        assert_eq!(text.finish(), expected);
    }
}
