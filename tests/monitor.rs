//! The embedded runtime's monitor as a real process, spoken to by the agent's own client.

mod fixture;
mod footprint;
mod hostile;
mod life;
mod logs;
mod streams;
