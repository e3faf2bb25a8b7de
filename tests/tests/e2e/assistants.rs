//! What programs read: the toolset for assistants is answered with JSON, and incidents keep their schema.

use std::process::Command;

use kevtmon_tests::daemon::{launch, program};
use kevtmon_tests::delivered::{document, list, string};
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{finish, hold_by_cwd};
use serde_json::Value;

fn printed(words: &[&str]) -> String {
    finish(Command::new(program()).args(words), "kevtmon".as_ref()).succeeded("kevtmon").stdout
}

#[test]
fn each_tool_of_the_toolset_is_answered() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    let _ = pod.delete_gateway();
    daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(pod.inum())
    });
    let schema: Value = serde_json::from_str(&printed(&["schema", "incidents"])).expect("JSON");
    let schema = jsonschema::draft202012::new(&schema).expect("a schema");
    for line in daemon.ask(&["incidents", "--all", "--json"]).stdout.lines() {
        let incident: Value = serde_json::from_str(line).expect("JSON");
        let errors: Vec<String> = schema.iter_errors(&incident).map(|error| error.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new(), "{incident}");
    }
    let mount = Mount::volume();
    let _holder = hold_by_cwd(mount.point());
    let path = mount.point().to_str().expect("UTF-8");
    let file = document("deploy/assistants/holmesgpt.yaml");
    let mut names = Vec::new();
    for tool in list(&file["toolsets"]["kevtmon"], "tools") {
        let (name, command) = (string(tool, "name"), string(tool, "command"));
        let (_, words) = command.split_once(" -- kevtmon ").expect("it is executed in the pod");
        let words = words.replace("{{ word }}", sandbox.uid()).replace("{{ path }}", path);
        let answer = daemon.ask(&words.split_whitespace().collect::<Vec<_>>());
        let lines: Vec<Value> =
            answer.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(answer.status.success() && !lines.is_empty(), "{name}: {}{}", answer.stdout, answer.stderr);
        assert!(name == "kevtmon_holders" || lines.iter().any(|line| line["advice"].is_array()), "{name}");
        let actions: Vec<&Value> =
            lines.iter().flat_map(|line| line["advice"].as_array().into_iter().flatten()).collect();
        assert!(actions.iter().all(|advice| advice["action"].is_string()), "{name}: {actions:?}");
        names.push(name);
    }
    assert_eq!(names, ["kevtmon_why", "kevtmon_incidents", "kevtmon_holders"]);
}
