//! The progress of a pull: a bar per layer on a terminal, a line per step elsewhere.
//!
//! Owns the wording and the arithmetic (bytes, rates).

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use super::size;
use crate::runtime::embedded::registry::{LayerState, Progress};

/// Rates are averaged over this time.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// The minimum time between two frames.
const FRAME_EVERY: Duration = Duration::from_millis(100);
/// The width of a bar between its brackets.
const BAR: usize = 20;
/// The minimum width for a bar and its figures; narrower terminals show only the figures.
const BAR_COLUMNS: usize = 72;

struct Layer {
    digest: String,
    done: u64,
    total: u64,
    state: LayerState,
    /// When the first bytes were reported, and how many there were.
    began: Option<(Duration, u64)>,
    /// Its final line has been printed.
    is_written: bool,
}

#[derive(Default)]
pub(super) struct PullProgress {
    layers: Vec<Layer>,
    /// The time, and the bytes of all layers at that time.
    samples: VecDeque<(Duration, u64)>,
    drawn_at: Option<Duration>,
    /// Lines on the terminal that the next frame overwrites.
    drawn_lines: usize,
}

impl PullProgress {
    /// Processes a progress event. Returns the line about it for an output that cannot be redrawn.
    pub(super) fn on_progress(&mut self, news: &Progress, now: Duration) -> Option<String> {
        match news {
            Progress::Resolved { reference, digest } => Some(format!("{reference} is {digest}\n")),
            Progress::Layer { digest, done, total, state } => {
                let changed = self.layer(digest, *done, *total, *state, now);
                let sum = self.layers.iter().map(|layer| layer.done).sum();
                self.samples.push_back((now, sum));
                while self.samples.front().is_some_and(|(at, _)| now.saturating_sub(*at) > RATE_WINDOW) {
                    self.samples.pop_front();
                }
                // Layers that have not started yet are not mentioned.
                (changed && *state != LayerState::Waiting).then(|| line(digest, *state, *total))
            }
            // The caller reports the result and warnings.
            Progress::Done { .. } | Progress::Failed { .. } | Progress::Warning { .. } => None,
        }
    }

    fn layer(&mut self, digest: &str, done: u64, total: u64, state: LayerState, now: Duration) -> bool {
        let at = self.layers.iter().position(|layer| layer.digest == digest).unwrap_or_else(|| {
            let state = LayerState::Waiting;
            let digest = digest.to_owned();
            self.layers.push(Layer { digest, done: 0, total: 0, state, began: None, is_written: false });
            self.layers.len() - 1
        });
        let layer = &mut self.layers[at];
        let changed = layer.state != state;
        // An existing layer counts neither as done nor as remaining.
        (layer.done, layer.total) = if state == LayerState::Exists { (0, 0) } else { (done, total) };
        layer.state = state;
        if state == LayerState::Downloading && layer.began.is_none() {
            layer.began = Some((now, done));
        }
        changed
    }

    /// The output that shows the progress on a terminal of this width; `None` while the last frame is recent.
    pub(super) fn frame(&mut self, now: Duration, columns: usize) -> Option<String> {
        if self.drawn_at.is_some_and(|at| now.saturating_sub(at) < FRAME_EVERY) {
            return None;
        }
        self.drawn_at = Some(now);
        let mut text = self.wiped();
        self.write_finished(&mut text);
        let mut lines: Vec<String> = self
            .layers
            .iter()
            .filter(|layer| is_under_way(layer))
            .map(|layer| bar(layer, now, columns))
            .collect();
        lines.push(self.sum());
        self.drawn_lines = lines.len();
        for line in lines {
            // A wrapped line would occupy two lines of the terminal and break the redrawing.
            text.extend(line.chars().take(columns.saturating_sub(1)));
            text.push('\n');
        }
        Some(text)
    }

    /// Clears the last frame; finished lines stay.
    pub(super) fn end(&mut self) -> String {
        let mut text = self.wiped();
        self.write_finished(&mut text);
        text
    }

    fn wiped(&mut self) -> String {
        match std::mem::take(&mut self.drawn_lines) {
            0 => String::new(),
            // Cursor up, then clear everything below.
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }

    fn write_finished(&mut self, text: &mut String) {
        for layer in &mut self.layers {
            if matches!(layer.state, LayerState::Exists | LayerState::Done) && !layer.is_written {
                layer.is_written = true;
                text.push_str(&line(&layer.digest, layer.state, layer.total));
            }
        }
    }

    fn sum(&self) -> String {
        let (done, total) = self
            .layers
            .iter()
            .fold((0_u64, 0_u64), |(done, total), layer| (done + layer.done, total + layer.total));
        let ended =
            self.layers.iter().filter(|layer| matches!(layer.state, LayerState::Exists | LayerState::Done));
        let mut text =
            format!("{} of {} layers, {} of {}", ended.count(), self.layers.len(), size(done), size(total));
        if let (Some((from, before)), Some((to, after))) = (self.samples.front(), self.samples.back())
            && let Some(rate) = per_second(after.saturating_sub(*before), to.saturating_sub(*from))
        {
            let _ = write!(text, ", {}/s", size(rate));
        }
        text
    }
}

fn is_under_way(layer: &Layer) -> bool {
    matches!(layer.state, LayerState::Downloading | LayerState::Extracting)
}

/// The length of a digest as Docker shows it.
fn short(digest: &str) -> &str {
    digest.get(7..19).unwrap_or(digest)
}

fn state_text(state: LayerState) -> &'static str {
    match state {
        LayerState::Waiting => "waiting",
        LayerState::Exists => "already present",
        LayerState::Downloading => "downloading",
        LayerState::Extracting => "extracting",
        LayerState::Done => "complete",
    }
}

fn line(digest: &str, state: LayerState, total: u64) -> String {
    let words = state_text(state);
    if total == 0 || state == LayerState::Exists {
        return format!("{}: {words}\n", short(digest));
    }
    format!("{}: {words} ({})\n", short(digest), size(total))
}

fn bar(layer: &Layer, now: Duration, columns: usize) -> String {
    let mut text = format!("{}  {:<11}  ", short(&layer.digest), state_text(layer.state));
    if columns >= BAR_COLUMNS {
        let full = BAR as u128 * u128::from(layer.done) / u128::from(layer.total.max(1));
        let full = usize::try_from(full).unwrap_or(BAR).min(BAR);
        let _ = write!(text, "[{}{}]  ", "=".repeat(full), " ".repeat(BAR - full));
    }
    let _ = write!(text, "{:>6} of {:>6}", size(layer.done), size(layer.total));
    let rate = layer
        .began
        .and_then(|(began, before)| per_second(layer.done.saturating_sub(before), now.saturating_sub(began)));
    if let Some(rate) = rate.filter(|_| layer.state == LayerState::Downloading) {
        let _ = write!(text, "  {}/s", size(rate));
    }
    text
}

/// `None` until enough time has passed for a rate.
fn per_second(bytes: u64, time: Duration) -> Option<u64> {
    let millis = time.as_millis();
    (millis >= 100).then(|| u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: fn(u64) -> Duration = Duration::from_millis;

    fn moved(letter: &str, done: u64, state: LayerState) -> Progress {
        Progress::Layer { digest: format!("sha256:{}", letter.repeat(64)), done, total: 10_000_000, state }
    }

    #[test]
    fn a_terminal_shows_bars_and_keeps_what_has_ended() {
        let mut view = PullProgress::default();
        view.on_progress(&moved("a", 0, LayerState::Exists), MILLI(0));
        view.on_progress(&moved("b", 0, LayerState::Waiting), MILLI(0));
        view.on_progress(&moved("b", 1_000_000, LayerState::Downloading), MILLI(0));
        view.on_progress(&moved("b", 5_000_000, LayerState::Downloading), MILLI(2000));
        assert_eq!(
            view.frame(MILLI(2000), 100).unwrap(),
            "aaaaaaaaaaaa: already present\n\
             bbbbbbbbbbbb  downloading  [==========          ]  5.00MB of 10.0MB  2.00MB/s\n\
             1 of 2 layers, 5.00MB of 10.0MB, 2.50MB/s\n"
        );
        assert_eq!(view.frame(MILLI(2050), 100), None, "not ten times as often as anybody can read");
        view.on_progress(&moved("b", 10_000_000, LayerState::Done), MILLI(3000));
        assert_eq!(
            view.frame(MILLI(3000), 30).unwrap(),
            "\x1b[2A\x1b[Jbbbbbbbbbbbb: complete (10.0MB)\n2 of 2 layers, 10.0MB of 10.0\n",
            "the last frame is replaced, and no line is as wide as the terminal"
        );
        assert_eq!(view.end(), "\x1b[1A\x1b[J");
    }

    #[test]
    fn elsewhere_each_step_of_a_layer_is_one_line() {
        let mut view = PullProgress::default();
        let mut said = String::new();
        for (done, state) in [
            (0, LayerState::Waiting),
            (1, LayerState::Downloading),
            (2, LayerState::Downloading),
            (10_000_000, LayerState::Extracting),
            (10_000_000, LayerState::Done),
        ] {
            said.extend(view.on_progress(&moved("c", done, state), MILLI(done)));
        }
        assert_eq!(
            said,
            "cccccccccccc: downloading (10.0MB)\ncccccccccccc: extracting (10.0MB)\ncccccccccccc: complete (10.0MB)\n"
        );
    }

    #[test]
    fn no_figure_is_too_large_or_too_small() {
        let mut view = PullProgress::default();
        let digest = "x".to_owned();
        let odd = Progress::Layer { digest, done: u64::MAX / 2, total: 0, state: LayerState::Downloading };
        view.on_progress(&odd, MILLI(0));
        assert!(view.frame(MILLI(0), 0).is_some_and(|text| text.contains('\n')));
        assert_eq!(per_second(u64::MAX, MILLI(100)), Some(u64::MAX));
        assert_eq!(per_second(1, MILLI(1)), None);
    }
}
