// A client of the sandbox host's service on connect-go, as Flex has one. Each check panics if the server breaks a promise.
//
//	client URL PROTOCOL          all checks against a daemon without keys, over HTTP/1.1 or HTTP/2
//	client URL PROTOCOL MARKER   one long stream; MARKER is printed with its first frame
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// Plain encoding/json under the name of the codec that connect-go has for protobuf's.
type codec struct{}

func (codec) Name() string                        { return "json" }
func (codec) Marshal(message any) ([]byte, error) { return json.Marshal(message) }
func (codec) Unmarshal(data []byte, message any) error {
	return json.Unmarshal(data, message)
}

const service = "/rpc.v1.SandboxService/"

var (
	base string
	// As Flex's clients have it: all of a call is over by then, a stream too.
	client = &http.Client{Timeout: 30 * time.Second}
	// A body that is read on for as long as it comes.
	patient = &http.Client{}
)

// Without TLS nothing negotiates the protocol, so a client says which one it speaks.
func speak(protocol string) {
	var protocols http.Protocols
	switch protocol {
	case "HTTP/1.1":
		protocols.SetHTTP1(true)
	case "HTTP/2":
		protocols.SetUnencryptedHTTP2(true)
	default:
		panic("which protocol is " + protocol + "?")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Protocols = &protocols
	client.Transport, patient.Transport = transport, transport
}

func versioned[T any](message *T) *connect.Request[T] {
	request := connect.NewRequest(message)
	request.Header().Set("x-api-version", "v1")
	return request
}

func try[Q, A any](method string, message Q) (*A, error) {
	rpc := connect.NewClient[Q, A](client, base+service+method, connect.WithCodec(codec{}))
	answer, err := rpc.CallUnary(context.Background(), versioned(&message))
	if err != nil {
		return nil, err
	}
	expect(answer.Header().Get("x-api-version") == "v1", "the answer of %s has no version", method)
	return answer.Msg, nil
}

func call[A, Q any](method string, message Q) *A {
	answer, err := try[Q, A](method, message)
	expect(err == nil, "%s %+v: %v", method, message, err)
	return answer
}

func refused[Q any](code connect.Code, method string, message Q) {
	_, err := try[Q, Empty](method, message)
	expect(connect.CodeOf(err) == code, "%s %+v: %v, not %v", method, message, err, code)
}

func expect(holds bool, format string, values ...any) {
	if !holds {
		// Some messages are as large as the protocol allows.
		panic(fmt.Sprintf("%.2000s", fmt.Sprintf(format, values...)))
	}
}

// The frames of a call and its answer; as Flex, it stops at the first answer.
func stream(by *http.Client, request ToolRequest, seen func(Progress)) (*ToolResponse, error) {
	url := base + service + "ExecuteToolStream"
	rpc := connect.NewClient[ToolRequest, ToolFrame](by, url, connect.WithCodec(codec{}))
	frames, err := rpc.CallServerStream(context.Background(), versioned(&request))
	if err != nil {
		return nil, err
	}
	defer frames.Close()
	for frames.Receive() {
		frame := frames.Msg()
		expect((frame.Progress == nil) != (frame.Response == nil), "a frame has one of both: %+v", frame)
		if frame.Response != nil {
			return frame.Response, nil
		}
		seen(*frame.Progress)
	}
	if err := frames.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("the stream ended without an answer")
}

func bash(session, id, command string) ToolRequest {
	params := map[string]any{"cmd": command}
	return ToolRequest{SessionID: session, ToolCallID: id, ToolName: "bash", Params: params}
}

func run(session, id, command string) *ToolResponse {
	return call[ToolResponse]("ExecuteTool", bash(session, id, command))
}

func sessions() {
	created := call[CreateSessionResponse]("CreateSession", CreateSessionRequest{
		SessionID: "my-session", Labels: map[string]string{"team": "blue"},
	})
	session := created.Session
	expect(session.ID == "my-session" && session.State == "active", "%+v", session)
	expect(session.Labels["team"] == "blue" && !session.Created.IsZero(), "%+v", session)
	capable := created.ServerCapabilities
	expect(capable.StreamingProgress && capable.TierRouting && capable.Pause, "%+v", capable)
	refused(connect.CodeAlreadyExists, "CreateSession", CreateSessionRequest{SessionID: "my-session"})
	for _, wrong := range []string{"../x", "-a", "a/b", strings.Repeat("a", 129)} {
		refused(connect.CodeInvalidArgument, "CreateSession", CreateSessionRequest{SessionID: wrong})
	}
	refused(connect.CodeInvalidArgument, "CreateSession", CreateSessionRequest{Quota: -1})
	got := call[SessionResponse]("GetSession", SessionRequest{"my-session"})
	expect(got.Session.ID == "my-session", "%+v", got)
	listed := call[SessionsResponse]("ListSessions", Empty{})
	has := slices.ContainsFunc(listed.Sessions, func(s Session) bool { return s.ID == "my-session" })
	expect(has, "%+v", listed)
	refused(connect.CodeNotFound, "GetSession", SessionRequest{"nobody"})

	call[Empty]("PauseSession", SessionRequest{"my-session"})
	refused(connect.CodeFailedPrecondition, "PauseSession", SessionRequest{"my-session"})
	refused(connect.CodeFailedPrecondition, "ExecuteTool", bash("my-session", "paused", "true"))
	call[Empty]("ResumeSession", SessionRequest{"my-session"})
	refused(connect.CodeFailedPrecondition, "ResumeSession", SessionRequest{"my-session"})
	// What a paused session refused is not what it answers now.
	expect(*run("my-session", "paused", "true").ExitCode == 0, "an error was kept")
}

func tools() {
	tool := func(id, name string, params map[string]any) *ToolResponse {
		return call[ToolResponse]("ExecuteTool", ToolRequest{
			SessionID: "my-session", ToolCallID: id, ToolName: name, Params: params,
			Resources: &Resources{},
		})
	}
	wrote := tool("w", "write_file", map[string]any{"path": "note", "content": "one\ntwo\n"})
	expect(wrote.Tier == 1 && wrote.ToolCallID == "w" && wrote.ExitCode == nil, "%+v", wrote)
	tool("e", "edit_file", map[string]any{"path": "note", "old_string": "two", "new_string": "three"})
	read := tool("r", "read_file", map[string]any{"path": "note"})
	expect(strings.Contains(read.Content, "three") && len(read.ContentBlocks) == 1, "%+v", read)
	expect(read.ContentBlocks[0].Type == "text", "%+v", read)
	expect(strings.Contains(tool("g", "grep", map[string]any{"pattern": "thr"}).Content, "note"), "grep")
	expect(strings.Contains(tool("f", "glob", map[string]any{"pattern": "n*"}).Content, "note"), "glob")

	ran := tool("b", "bash", map[string]any{"cmd": "echo out; echo err >&2; exit 3", "timeout_ms": 20000})
	expect(*ran.ExitCode == 3 && ran.Tier == 2 && ran.Duration > 0, "%+v", ran)
	expect(strings.Contains(ran.Content, "out") && strings.Contains(ran.Content, "err"), "%+v", ran)
	late := tool("t", "bash", map[string]any{"cmd": "sleep 1000", "timeout_ms": 50})
	expect(late.ExitCode != nil && *late.ExitCode == 124, "%+v", late)

	init := "git init -q . && git config user.email a@b && git config user.name A"
	expect(*run("my-session", "i", init).ExitCode == 0, "git init")
	tool("ga", "git_add", map[string]any{"path": "note"})
	tool("gc", "git_commit", map[string]any{"message": "first"})
	expect(strings.Contains(tool("gl", "git_log", nil).Content, "first"), "git_log")
	expect(!strings.Contains(tool("gs", "git_status", nil).Content, " M note"), "git_status")
	pushed := tool("gp", "git_push", map[string]any{"args": []string{"--force"}})
	expect(strings.Contains(pushed.Content, "--force") && pushed.Tier == 2, "%+v", pushed)

	// What is wrong with a call is an answer for the model.
	for id, name := range map[string]string{"u1": "no_such_tool", "u2": "read_file"} {
		answer := tool(id, name, map[string]any{"colour": "red"})
		expect(answer.Content != "" && answer.ToolName == name, "%+v", answer)
	}
	refused(connect.CodeInvalidArgument, "ExecuteTool", ToolRequest{SessionID: "my-session", ToolName: "bash"})

	// Once under an id, however often and by how many it is asked for.
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			answer := run("my-session", "once", "echo x >> count; cat count")
			expect(strings.TrimSpace(answer.Content) == "x", "%+v", answer)
		})
	}
	group.Wait()
}

func streams() {
	var said strings.Builder
	var errs strings.Builder
	answer, err := stream(client, bash("my-session", "s1", "echo one; echo two >&2; printf '\\303\\251'"),
		func(progress Progress) {
			if progress.IsError {
				errs.WriteString(progress.Content)
			} else {
				said.WriteString(progress.Content)
			}
		})
	expect(err == nil && answer.ToolCallID == "s1" && *answer.ExitCode == 0, "%+v %v", answer, err)
	expect(said.String() == "one\né" && errs.String() == "two\n", "%q %q", said.String(), errs.String())
	again, err := stream(client, bash("my-session", "s1", "echo one; echo two >&2; printf '\\303\\251'"),
		func(progress Progress) { panic("a kept answer is one frame") })
	expect(err == nil && again.Content == answer.Content, "%+v %v", again, err)
	_, err = stream(client, bash("nobody", "s2", "true"), func(Progress) {})
	expect(connect.CodeOf(err) == connect.CodeNotFound, "%v", err)
	_, err = stream(client, bash("my-session", "", "true"), func(Progress) {})
	expect(connect.CodeOf(err) == connect.CodeInvalidArgument, "%v", err)

	// A reader who takes one frame at a time, and a command that says more than all buffers hold.
	total := 0
	slow := bash("my-session", "slow", "head -c 20000000 /dev/zero | tr '\\0' x")
	_, err = stream(patient, slow, func(progress Progress) { total += len(progress.Content) })
	expect(err == nil && total > 0, "%v after %d bytes", err, total)

	// The largest message there is goes in, and one byte more does not.
	large := ToolRequest{SessionID: "my-session", ToolCallID: "large", ToolName: "bash"}
	large.Params = map[string]any{"cmd": "true", "padding": ""}
	empty, _ := json.Marshal(large)
	large.Params["padding"] = strings.Repeat("x", 16<<20-len(empty)+1)
	refused(connect.CodeResourceExhausted, "ExecuteTool", large)
	large.Params["padding"] = strings.Repeat("x", 16<<20-len(empty))
	misfit, err := try[ToolRequest, ToolResponse]("ExecuteTool", large)
	expect(err == nil && strings.Contains(misfit.Content, "padding"), "16 MiB: %v", err)
	// A tool takes less than a message may hold, and says so to the model.
	file := ToolRequest{SessionID: "my-session", ToolCallID: "file", ToolName: "write_file"}
	file.Params = map[string]any{"path": "large", "content": strings.Repeat("x", 8<<20)}
	expect(call[ToolResponse]("ExecuteTool", file).Content != "", "8 MiB for a file")
}

func crowd() {
	for n := range 4 {
		call[CreateSessionResponse]("CreateSession", CreateSessionRequest{SessionID: fmt.Sprintf("crowd-%d", n)})
	}
	var group sync.WaitGroup
	for n := range 200 {
		group.Go(func() {
			session, id := fmt.Sprintf("crowd-%d", n%4), fmt.Sprintf("call-%d", n)
			answer, err := stream(patient, bash(session, id, "echo "+id), func(Progress) {})
			expect(err == nil, "%s: %v", id, err)
			expect(strings.TrimSpace(answer.Content) == id && answer.ToolCallID == id, "%+v", answer)
		})
	}
	group.Wait()
	for n := range 4 {
		call[Empty]("DestroySession", SessionRequest{fmt.Sprintf("crowd-%d", n)})
	}
}

func snapshots(capable bool) {
	if !capable {
		turn := call[SnapshotResponse]("TurnComplete", SessionRequest{"my-session"})
		expect(*turn == SnapshotResponse{}, "%+v", turn)
		return
	}
	var mutex sync.Mutex
	var group sync.WaitGroup
	var turns []int
	for range 8 {
		group.Go(func() {
			turn := call[SnapshotResponse]("TurnComplete", SessionRequest{"my-session"})
			mutex.Lock()
			defer mutex.Unlock()
			turns = append(turns, turn.TurnNumber)
		})
	}
	group.Wait()
	slices.Sort(turns)
	expect(slices.Equal(turns, []int{1, 2, 3, 4, 5, 6, 7, 8}), "turns %v", turns)
	named := call[SnapshotResponse]("CreateSnapshot", SnapshotRequest{"my-session", "good"})
	expect(named.SnapshotID == "good", "%+v", named)
	refused(connect.CodeAlreadyExists, "CreateSnapshot", SnapshotRequest{"my-session", "good"})
	run("my-session", "break", "echo broken > note")
	later := call[SnapshotResponse]("TurnComplete", SessionRequest{"my-session"})
	call[Empty]("RollbackSession", RollbackRequest{"my-session", "good"})
	expect(!strings.Contains(run("my-session", "look", "cat note").Content, "broken"), "rollback")
	listed := call[SnapshotsResponse]("ListSnapshots", SessionRequest{"my-session"})
	has := func(name string) bool {
		return slices.ContainsFunc(listed.Snapshots, func(s SnapshotInfo) bool { return s.Name == name })
	}
	expect(has("good") && has(later.SnapshotID) && has("turn-0001"), "%+v", listed)
	refused(connect.CodeNotFound, "RollbackSession", RollbackRequest{"my-session", "never"})
	fork := call[CreateSessionResponse]("CreateSession",
		CreateSessionRequest{SessionID: "forked", BaseSnapshot: "my-session@good"})
	expect(fork.Session.ID == "forked" && fork.Session.State == "active", "%+v", fork)
	expect(strings.Contains(run("forked", "look", "cat note").Content, "three"), "the fork's files")
	call[Empty]("DestroySession", SessionRequest{"forked"})
}

// What the orchestrator does for each sandbox.
func orchestrator() {
	created := call[CreateSessionResponse]("CreateSession", CreateSessionRequest{})
	session := created.Session.ID
	expect(session != "", "%+v", created)
	// It listens only after a while; the address is called at once.
	serve := "mkdir w && echo $GREETING > w/health && sleep 1 && exec python3 -m http.server -d w 8081"
	launched := call[LaunchResponse]("LaunchProcess", LaunchRequest{
		SessionID: session, Binary: "sh", Args: []string{"-c", serve},
		Env: map[string]string{"GREETING": "hello"}, ExposePort: 8081,
	})
	expect(launched.Status == "starting" || launched.Status == "running", "%+v", launched)
	// What listens there speaks HTTP/1.1, whatever the host's service speaks.
	prober := &http.Client{Timeout: client.Timeout}
	answer, err := prober.Get("http://" + launched.Address + "/health")
	expect(err == nil, "the address does not hold: %v", err)
	body, err := io.ReadAll(answer.Body)
	expect(err == nil && string(body) == "hello\n", "%q %v", body, err)
	process := ProcessRequest{session, launched.ProcessID}
	expect(call[ProcessResponse]("GetProcessStatus", process).ExitCode == nil, "it runs")
	call[Empty]("KillProcess", KillRequest{SessionID: session, ProcessID: launched.ProcessID})
	for call[ProcessResponse]("GetProcessStatus", process).Status != "exited" {
		time.Sleep(20 * time.Millisecond)
	}
	status := call[ProcessResponse]("GetProcessStatus", process)
	expect(status.ExitCode != nil && *status.ExitCode == 128+15, "%+v", status)
	// The address goes with the process.
	for {
		answer, err := prober.Get("http://" + launched.Address + "/health")
		if err != nil {
			break
		}
		answer.Body.Close()
		time.Sleep(20 * time.Millisecond)
	}
	call[Empty]("KillProcess", KillRequest{SessionID: session, ProcessID: launched.ProcessID})
	unknown := KillRequest{SessionID: session, ProcessID: "proc-none-1"}
	refused(connect.CodeNotFound, "KillProcess", unknown)
	refused(connect.CodeInvalidArgument, "LaunchProcess", LaunchRequest{SessionID: session, Binary: "sh", ExposePort: 70000})
	missing := call[LaunchResponse]("LaunchProcess", LaunchRequest{SessionID: session, Binary: "/no/such"})
	process = ProcessRequest{session, missing.ProcessID}
	for call[ProcessResponse]("GetProcessStatus", process).Status != "exited" {
		time.Sleep(20 * time.Millisecond)
	}
	expect(*call[ProcessResponse]("GetProcessStatus", process).ExitCode == -1, "a launch that failed")
	call[Empty]("DestroySession", SessionRequest{session})
	refused(connect.CodeNotFound, "DestroySession", SessionRequest{session})
}

func service_itself() {
	answer, err := client.Get(base + "/health")
	expect(err == nil, "%v", err)
	body, _ := io.ReadAll(answer.Body)
	expect(answer.StatusCode == 200 && string(body) == "ok\n", "%d %q", answer.StatusCode, body)
	health := call[HealthResponse]("HealthCheck", Empty{})
	expect(health.Status != "" && health.SessionCount >= 1, "%+v", health)
	refused(connect.CodeUnimplemented, "NoSuchMethod", Empty{})
	for version, code := range map[string]connect.Code{"v0": connect.CodeFailedPrecondition, "soon": connect.CodeFailedPrecondition, "v7": 0} {
		rpc := connect.NewClient[Empty, HealthResponse](client, base+service+"HealthCheck", connect.WithCodec(codec{}))
		request := connect.NewRequest(&Empty{})
		request.Header().Set("x-api-version", version)
		_, err := rpc.CallUnary(context.Background(), request)
		expect(err == nil && code == 0 || connect.CodeOf(err) == code, "%s: %v", version, err)
	}
	rpc := connect.NewClient[ToolRequest, ToolResponse](client, base+service+"ExecuteTool",
		connect.WithCodec(codec{}), connect.WithSendGzip())
	packed := bash("my-session", "gzip", "echo "+strings.Repeat("packed ", 1000))
	got, err := rpc.CallUnary(context.Background(), connect.NewRequest(&packed))
	expect(err == nil && strings.Contains(got.Msg.Content, "packed"), "%v", err)
	limited, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err = rpc.CallUnary(limited, connect.NewRequest(ptr(bash("my-session", "deadline", "sleep 30"))))
	expect(connect.CodeOf(err) == connect.CodeDeadlineExceeded, "%v", err)
}

func ptr[T any](value T) *T { return &value }

func main() {
	base = os.Args[1]
	speak(os.Args[2])
	if len(os.Args) > 3 {
		// Until somebody kills the daemon.
		call[CreateSessionResponse]("CreateSession", CreateSessionRequest{SessionID: "long"})
		_, err := stream(patient, bash("long", "endless", "while echo tick; do sleep 0.05; done"),
			func(Progress) { fmt.Println(os.Args[3]) })
		fmt.Println("ended:", connect.CodeOf(err))
		return
	}
	created := call[CreateSessionResponse]("CreateSession", CreateSessionRequest{SessionID: "capabilities"})
	call[Empty]("DestroySession", SessionRequest{"capabilities"})
	for _, check := range []struct {
		name string
		run  func()
	}{
		{"sessions", sessions},
		{"tools", tools},
		{"streams", streams},
		{"snapshots", func() { snapshots(created.ServerCapabilities.Snapshots) }},
		{"crowd", crowd},
		{"orchestrator", orchestrator},
		{"service", service_itself},
	} {
		check.run()
		fmt.Println("ok", check.name)
	}
	call[Empty]("DestroySession", SessionRequest{"my-session"})
	fmt.Println("all kept")
}
