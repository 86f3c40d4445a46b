//! Columns of text, as kubectl aligns them.
//!
//! Owns spacing.

const GAP: usize = 3;

/// Formats rows of equal length; the last column is not padded. Control characters are shown as `?`: a name
/// or a message must not control the terminal.
pub(crate) fn render(rows: &[Vec<String>]) -> String {
    render_on(rows, &mut Vec::new(), &Paint::default())
}

/// As [`render`], with colours if enabled; the first row is the header.
pub(super) fn render_painted(rows: &[Vec<String>], colour: bool) -> String {
    let paint = rows.first().filter(|_| colour).map(|header| Paint::of(header)).unwrap_or_default();
    render_on(rows, &mut Vec::new(), &paint)
}

#[derive(Default)]
pub(super) struct Paint {
    columns: Vec<Option<Role>>,
}

#[derive(Clone, Copy)]
enum Role {
    /// `1/2`.
    Ready,
    /// `Running`, `CrashLoopBackOff`.
    Status,
    /// `Normal`, `Warning`.
    Event,
    /// A count of problems.
    Problems,
}

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";

const WELL: [&str; 8] = ["Running", "Completed", "Succeeded", "Ready", "Bound", "Active", "ok", "Available"];
const ON_THE_WAY: [&str; 12] = [
    "Pending",
    "ContainerCreating",
    "PodInitializing",
    "Init",
    "Terminating",
    "NotReady",
    "Unknown",
    "Released",
    "Waiting",
    "waiting",
    "trial",
    "stored",
];

impl Paint {
    /// The colours of a table with this header.
    pub(super) fn of(header: &[String]) -> Self {
        let role = |name: &String| match name.as_str() {
            "READY" => Some(Role::Ready),
            "STATUS" | "STATE" => Some(Role::Status),
            "TYPE" => Some(Role::Event),
            "PROBLEMS" => Some(Role::Problems),
            _ => None,
        };
        Self { columns: header.iter().map(role).collect() }
    }

    /// The escape code of a cell's colour.
    fn code(&self, column: usize, cell: &str) -> Option<&'static str> {
        match self.columns.get(column).copied().flatten()? {
            Role::Ready => {
                let (ready, all) = cell.split_once('/')?;
                Some(if ready == all { GREEN } else { YELLOW })
            }
            Role::Status => {
                // `Init:0/1`, `Ready,SchedulingDisabled`, `Running 5m`; headers are not states.
                let word =
                    cell.split([':', ',', ' ']).next().filter(|word| *word != cell || !is_header(cell))?;
                Some(match word {
                    _ if cell.starts_with("Init:") && !cell.ends_with(|last: char| last.is_ascii_digit()) => {
                        RED
                    }
                    _ if WELL.contains(&word) => GREEN,
                    _ if ON_THE_WAY.contains(&word) => YELLOW,
                    _ => RED,
                })
            }
            Role::Event => (cell == "Warning").then_some(YELLOW),
            Role::Problems => (cell != "0" && !is_header(cell)).then_some(RED),
        }
    }
}

fn is_header(cell: &str) -> bool {
    !cell.is_empty() && cell.chars().all(|c| c.is_ascii_uppercase())
}

/// As [`render`], to follow lines whose columns had these widths; the widths only grow.
pub(super) fn render_on(rows: &[Vec<String>], widths: &mut Vec<usize>, paint: &Paint) -> String {
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (known, cell) in widths.iter_mut().zip(row) {
            *known = width(cell).max(*known);
        }
    }
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            match paint.code(column, cell) {
                Some(code) => text.extend(["\u{1b}[", code, "m", &printable(cell), "\u{1b}[0m"]),
                None => text.push_str(&printable(cell)),
            }
            if column + 1 < row.len() {
                let pad = widths.get(column).copied().unwrap_or_default() - width(cell) + GAP;
                text.extend(std::iter::repeat_n(' ', pad));
            }
        }
        text.push('\n');
    }
    text
}

/// A single line, without control characters.
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

    #[test]
    fn coloured_cells_take_the_same_room() {
        let rows = [
            vec!["NAME", "READY", "STATUS", "AGE"],
            vec!["a", "1/1", "Running", "5s"],
            vec!["b", "0/1", "CrashLoopBackOff", "5s"],
            vec!["c", "0/1", "Init:0/1", "5s"],
            vec!["d", "0/1", "Init:Error", "5s"],
        ];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        let painted = render_painted(&rows, true);
        let mut plain = painted.clone();
        for code in [GREEN, YELLOW, RED, "0"] {
            plain = plain.replace(&format!("\u{1b}[{code}m"), "");
        }
        assert_eq!(plain, render(&rows));
        assert_eq!(render_painted(&rows, false), render(&rows));
        for cell in
            ["[32m1/1", "[32mRunning", "[33m0/1", "[31mCrashLoopBackOff", "[33mInit:0/1", "[31mInit:Error"]
        {
            assert!(painted.contains(cell), "{cell} in {painted}");
        }
        assert!(painted.starts_with("NAME   READY   STATUS "), "{painted}");
    }
}
