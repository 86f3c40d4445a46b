//! Columns of text, as kubectl aligns them.
//!
//! Owns spacing. Must not know what the cells mean.

/// Spaces between columns.
const GAP: usize = 3;

/// Rows of equal length become lines; the last column is not padded. Control characters are shown as `?`: a name or a
/// message must not steer the terminal.
pub(super) fn render(rows: &[Vec<String>]) -> String {
    render_on(rows, &mut Vec::new())
}

/// As [`render`], below lines whose columns had these widths; they grow.
pub(super) fn render_on(rows: &[Vec<String>], widths: &mut Vec<usize>) -> String {
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (known, cell) in widths.iter_mut().zip(row) {
            *known = width(cell).max(*known);
        }
    }
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            text.push_str(&printable(cell));
            if column + 1 < row.len() {
                let pad = widths.get(column).copied().unwrap_or_default() - width(cell) + GAP;
                text.extend(std::iter::repeat_n(' ', pad));
            }
        }
        text.push('\n');
    }
    text
}

/// One line, without control characters.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_the_last_is_not_padded() {
        let rows = [vec!["NAME", "AGE"], vec!["a-long-name", "5s"], vec!["b\u{1b}[31m", "10d"]];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        assert_eq!(render(&rows), "NAME          AGE\na-long-name   5s\nb?[31m        10d\n");
        assert_eq!(render(&[]), "");
    }
}
