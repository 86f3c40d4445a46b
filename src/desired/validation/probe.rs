//! Rules of probes and lifecycle handlers.

use crate::model::api::pod::{
    Container, ExecAction, HttpGetAction, IntOrString, Lifecycle, LifecycleHandler, Probe, TcpSocketAction,
};
use crate::model::field_error::{Errors, Path};
use crate::model::names;

/// Probes and lifecycle of a container that may have them.
pub(super) fn validate(container: &Container, grace_seconds: i64, at: &Path<'_>, errors: &mut Errors) {
    if let Some(lifecycle) = &container.lifecycle {
        validate_lifecycle(lifecycle, grace_seconds, &at.child("lifecycle"), errors);
    }
    for (field, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        let Some(probe) = probe else { continue };
        let probe_at = at.child(field);
        validate_probe(probe, &probe_at, errors);
        let grace_at = probe_at.child("terminationGracePeriodSeconds");
        if field == "readinessProbe" {
            if let Some(seconds) = probe.termination_grace_period_seconds {
                errors.invalid_number(&grace_at, seconds, "must not be set for readinessProbes");
            }
            continue;
        }
        if probe.success_threshold != 1 {
            errors.invalid_number(&probe_at.child("successThreshold"), probe.success_threshold, "must be 1");
        }
        if let Some(seconds) = probe.termination_grace_period_seconds
            && seconds <= 0
        {
            errors.invalid_number(&grace_at, seconds, "must be greater than 0");
        }
    }
}

fn validate_probe(probe: &Probe, at: &Path<'_>, errors: &mut Errors) {
    let mut handlers = Handlers::new(at, errors);
    handlers.exec(probe.exec.as_ref());
    handlers.http_get(probe.http_get.as_ref());
    handlers.tcp_socket(probe.tcp_socket.as_ref());
    if let Some(grpc) = &probe.grpc
        && handlers.next("grpc")
    {
        let grpc_at = at.child("grpc");
        handlers.errors.all_number(&grpc_at.child("port"), grpc.port, names::port_number(grpc.port));
    }
    handlers.finish();
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        errors.not_negative(&at.child(field), i64::from(value));
    }
}

fn validate_lifecycle(lifecycle: &Lifecycle, grace_seconds: i64, at: &Path<'_>, errors: &mut Errors) {
    for (field, handler) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        if let Some(handler) = handler {
            validate_handler(handler, grace_seconds, &at.child(field), errors);
        }
    }
}

fn validate_handler(handler: &LifecycleHandler, grace_seconds: i64, at: &Path<'_>, errors: &mut Errors) {
    let mut handlers = Handlers::new(at, errors);
    handlers.exec(handler.exec.as_ref());
    handlers.http_get(handler.http_get.as_ref());
    handlers.tcp_socket(handler.tcp_socket.as_ref());
    if let Some(sleep) = &handler.sleep
        && handlers.next("sleep")
        && !(0..=grace_seconds).contains(&sleep.seconds)
    {
        let detail =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace_seconds})");
        handlers.errors.invalid_number(&at.child("sleep").child("seconds"), sleep.seconds, detail);
    }
    handlers.finish();
}

/// Counts handlers: exactly one is required.
struct Handlers<'a, 'p> {
    at: &'a Path<'p>,
    errors: &'a mut Errors,
    count: usize,
}

impl<'a, 'p> Handlers<'a, 'p> {
    fn new(at: &'a Path<'p>, errors: &'a mut Errors) -> Self {
        Self { at, errors, count: 0 }
    }

    /// True for the first handler, which is then checked.
    fn next(&mut self, field: &str) -> bool {
        self.count += 1;
        if self.count > 1 {
            self.errors.forbidden(&self.at.child(field), "may not specify more than 1 handler type");
        }
        self.count == 1
    }

    fn finish(self) {
        if self.count == 0 {
            self.errors.required(self.at, "must specify a handler type");
        }
    }

    fn exec(&mut self, action: Option<&ExecAction>) {
        if let Some(action) = action
            && self.next("exec")
            && action.command.is_empty()
        {
            self.errors.required(&self.at.child("exec").child("command"), "");
        }
    }

    fn http_get(&mut self, action: Option<&HttpGetAction>) {
        let Some(action) = action else { return };
        if !self.next("httpGet") {
            return;
        }
        let at = self.at.child("httpGet");
        self.errors.present(&at.child("path"), &action.path);
        port(&action.port, &at.child("port"), self.errors);
        self.errors.one_of(&at.child("scheme"), &action.scheme, &["HTTP", "HTTPS"]);
        for (index, header) in action.http_headers.iter().enumerate() {
            let headers_at = at.child("httpHeaders");
            let complaints = names::http_header(&header.name);
            self.errors.all(&headers_at.index(index).child("name"), &header.name, complaints);
        }
    }

    fn tcp_socket(&mut self, action: Option<&TcpSocketAction>) {
        if let Some(action) = action
            && self.next("tcpSocket")
        {
            port(&action.port, &self.at.child("tcpSocket").child("port"), self.errors);
        }
    }
}

fn port(port: &IntOrString, at: &Path<'_>, errors: &mut Errors) {
    match port {
        IntOrString::Int(number) => errors.all_number(at, number, names::port_number(*number)),
        IntOrString::String(name) => errors.all(at, name, names::port_name(name)),
    }
}
