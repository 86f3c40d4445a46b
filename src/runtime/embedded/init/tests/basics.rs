//! A container as it should be.

use super::*;

#[test]
fn a_container_runs_with_its_own_view_of_the_machine() {
    let sample = Sample::new("view", "echo $$; readlink /proc/self/exe; ls /; ls /proc/self/fd; mount; echo $HOME; id; pwd");
    let outcome = sample.run();
    println!("{outcome:#?}\n{}", outcome.output);
    assert_eq!(outcome.failed, None);
    assert_eq!(outcome.code, 0);
    assert!(outcome.output.starts_with("1\n"));
}

#[test]
fn an_exec_sees_the_container() {
    let sample = Sample::new("exec", "sleep 100");
    let running = sample.start();
    assert_eq!(running.failed, None);
    let outcome = run_exec(&running, &PodHandles::default(), default_process("ps; ls -l /proc/self/fd; cat /proc/self/status"));
    println!("{}", outcome.output);
    assert_eq!(outcome.failed, None);
    crate::sys::kill::kill_process(running.pid).unwrap();
    assert_eq!(running.end().code, 137);
}
