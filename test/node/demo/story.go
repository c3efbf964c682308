//go:build kube

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/node"
	"github.com/seed-60ae5743/baton/test/stack"
)

// story is what happens, and what of the cluster it happens to.
type story struct {
	n       *node.Node
	engines *engines
	say     func(string)
	gateway string // http://IP
	talk    []message
	told    []turn
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// turn is one request, as the pods tell it.
type turn struct {
	what            string
	prefill, decode string // pods
	prompt, cached  int    // tokens
	took            time.Duration
}

// objects are what a platform has before Baton: a gateway, and pods that serve a model.
const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: prod}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: models, namespace: prod}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
`

// deployment is two pods of a role: the role's name, and the pods' spec.
const deployment = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: prod}
spec:
  replicas: 2
  selector: {matchLabels: {app: llama, part: %[1]s}}
  template:
    metadata: {labels: {app: llama, part: %[1]s, llm-d.ai/role: %[1]s}}
    spec: %[2]s
`

var repository, tag, _ = strings.Cut(node.BatonImage, ":")

// values are those of the chart, as one would give them.
var values = []string{
	"--set", "router.epp.image.repository=" + repository + ",router.epp.image.tag=" + tag + ",router.epp.image.pullPolicy=Never",
	"--set", "router.epp.resources.requests.cpu=100m,router.epp.resources.requests.memory=64Mi",
	"--set", "router.modelServers.matchLabels.app=llama",
	"--set", "provider.name=istio,httpRoute.create=true,httpRoute.parentRefs[0].name=models",
}

// system makes the conversation's prompt long, as those of real assistants are.
var system = strings.Repeat("You are the travel desk of a small railway company. Answer in a friendly, plain way. ", 20)

func (s *story) tell(ctx context.Context) error {
	for _, step := range []struct {
		title string
		do    func(context.Context) error
	}{
		{"A gateway of Istio, two prefill pods and two decode pods: " + s.engines.what, s.platform},
		{"Baton by its chart", s.install},
		{"A conversation", s.converse},
		{"The prefill pod that has the conversation dies", s.losePrefill},
		{"The picker dies while an answer runs", s.losePicker},
	} {
		fmt.Printf("\n%s\n", step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", strings.ToLower(step.title[:1])+step.title[1:], err)
		}
	}
	fmt.Printf("\n%-34s %-26s %-26s %7s %7s %9s\n", "request", "prefill pod", "decode pod", "prompt", "cached", "took")
	for _, t := range s.told {
		fmt.Printf("%-34s %-26s %-26s %7d %7d %6d ms\n", t.what, t.prefill, t.decode, t.prompt, t.cached, t.took.Milliseconds())
	}
	return nil
}

func (s *story) platform(ctx context.Context) error {
	all := objects
	for _, role := range []worker.Role{worker.Prefill, worker.Decode} {
		pod, err := s.engines.pod(role)
		if err != nil {
			return err
		}
		all += fmt.Sprintf(deployment, role, pod)
	}
	if err := s.n.Apply(ctx, all); err != nil {
		return err
	}
	if err := s.kubectl(ctx, "wait", "--for=condition=Available", "deployment", "--all", "--timeout="+s.engines.start.String()); err != nil {
		said, _ := s.n.Kubectl(ctx, "", "logs", "--namespace=prod", "--selector=app=llama", "--tail=5", "--prefix")
		return fmt.Errorf("%w\n%s", err, said)
	}
	return s.kubectl(ctx, "get", "pods")
}

func (s *story) install(ctx context.Context) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	fmt.Println("  $ helm install llama charts/baton --namespace prod", strings.Join(values, " "))
	args := append([]string{"install", "llama", filepath.Join(root, "charts", "baton"), "--namespace", "prod"}, values...)
	if _, err := s.n.Helm(ctx, args...); err != nil {
		return err
	}
	if err := s.kubectl(ctx, "wait", "--for=condition=Available", "deployment/llama-epp", "--timeout=120s"); err != nil {
		return err
	}
	address, err := s.n.Kubectl(ctx, "", "get", "gateway", "models", "--namespace=prod", "--output=jsonpath={.status.addresses[0].value}")
	if err != nil {
		return err
	}
	s.gateway = "http://" + address
	began := time.Now()
	err = stack.Await(ctx, "the gateway to answer", func() bool {
		_, err := s.ask(ctx, []message{{"user", "is it there?"}}, 1)
		return err == nil
	})
	s.say(fmt.Sprintf("the first answer, %d ms after the picker was ready", time.Since(began).Milliseconds()))
	return err
}

func (s *story) converse(ctx context.Context) error {
	s.talk = []message{{"system", system}}
	for i, question := range []string{"How do I get to High Tarn with a bicycle?", "How long is the change?", "And what does it cost?"} {
		if _, err := s.turn(ctx, fmt.Sprintf("turn %d", i+1), question); err != nil {
			return err
		}
	}
	first, last := s.told[0], s.told[len(s.told)-1]
	if last.cached <= first.cached || last.prefill != first.prefill {
		return fmt.Errorf("expected the last turn to find the prompt of the turns before, in the same pod: %+v", s.told)
	}
	s.say(fmt.Sprintf("each turn went to %s, which held what was said before: %d of %d tokens", last.prefill, last.cached, last.prompt))
	return nil
}

// turn asks the next question, and tells who served it.
func (s *story) turn(ctx context.Context, what, question string) (turn, error) {
	s.talk = append(s.talk, message{"user", question})
	before, err := s.served(ctx)
	if err != nil {
		return turn{}, err
	}
	began := time.Now()
	a, err := s.ask(ctx, s.talk, 16)
	if err != nil {
		return turn{}, err
	}
	t := turn{what: what, prompt: a.Usage.PromptTokens, took: time.Since(began)}
	s.talk = append(s.talk, a.Choices[0].Message)
	err = stack.Await(ctx, "two pods to say that they have served", func() bool {
		after, err := s.served(ctx)
		if err != nil {
			return false
		}
		for name, c := range after {
			switch {
			case c.served == before[name].served:
			case strings.HasPrefix(name, "prefill"):
				t.prefill, t.cached = name, c.cached-before[name].cached
			default:
				t.decode = name
			}
		}
		return t.prefill != "" && t.decode != ""
	})
	s.told = append(s.told, t)
	s.say(fmt.Sprintf("%s: prefill by %s, decode by %s", what, t.prefill, t.decode))
	return t, err
}

func (s *story) losePrefill(ctx context.Context) error {
	victim := s.told[len(s.told)-1].prefill
	if err := s.kubectl(ctx, "delete", "pod", victim, "--grace-period=0", "--force"); err != nil {
		return err
	}
	t, err := s.turn(ctx, "right after its pod was killed", "Which platform?")
	if err != nil {
		return err
	}
	if t.prefill == victim {
		return errors.New("the killed pod has served")
	}
	s.say("the client saw nothing of it")
	return nil
}

// losePicker kills the picker's process under a streamed answer.
func (s *story) losePicker(ctx context.Context) error {
	uid, err := s.n.Kubectl(ctx, "", "get", "pods", "--namespace=prod", "--selector=app.kubernetes.io/name=baton", "--output=jsonpath={.items[0].metadata.uid}")
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	begun := make(chan struct{})
	go func() { ended <- s.stream(ctx, begun) }()
	select {
	case <-begun:
	case err := <-ended:
		return fmt.Errorf("the answer did not begin: %w", err)
	}
	if err := s.n.Kill(uid, "extproc"); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return errors.Join(errors.New("the answer ended before the picker did"), err)
	default:
	}
	s.say("killed, with SIGKILL; the answer goes on")
	if err := <-ended; err != nil {
		return err
	}
	s.say("the answer has ended whole: no answer's body goes through the picker")
	began := time.Now()
	for ctx.Err() == nil {
		if _, err := s.turn(ctx, "once the picker is back", "Thank you!"); err == nil {
			s.say(fmt.Sprintf("the next request is served %d s later: the kubelet has started the picker again", int(time.Since(began).Seconds())))
			return nil
		}
		s.talk = s.talk[:len(s.talk)-1]
		wait, cancel := context.WithTimeout(ctx, time.Second)
		<-wait.Done()
		cancel()
	}
	return ctx.Err()
}

func (s *story) kubectl(ctx context.Context, args ...string) error {
	fmt.Println("  $ kubectl --namespace prod", strings.Join(args, " "))
	out, err := s.n.Kubectl(ctx, "", append(args, "--namespace=prod")...)
	for line := range strings.Lines(out) {
		fmt.Print("    " + line)
	}
	return err
}

// served returns what each pod has done, by its own word.
func (s *story) served(ctx context.Context) (map[string]counts, error) {
	list, err := s.n.Kubectl(ctx, "", "get", "pods", "--namespace=prod", "--selector=app=llama", "--field-selector=status.phase=Running",
		`--output=jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	out := map[string]counts{}
	for line := range strings.Lines(list) {
		name, ip, _ := strings.Cut(strings.TrimSpace(line), " ")
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		if c, err := s.engines.counts(short, "http://"+ip+":8000"); err == nil {
			out[name] = c // a pod that has just begun or ended does not answer
		}
		cancel()
	}
	return out, nil
}

type answer struct {
	Choices []struct{ Message message }
	Usage   struct {
		PromptTokens int `json:"prompt_tokens"`
	}
}

// post sends a chat to the gateway. The answer's body is the caller's to close.
func (s *story) post(ctx context.Context, messages []message, tokens int, stream bool) (*http.Response, error) {
	body, err := json.Marshal(map[string]any{
		"model": s.engines.model, "messages": messages, "max_tokens": tokens, "stream": stream, "ignore_eos": s.engines.ignoreEOS,
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateway+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, said)
	}
	return resp, nil
}

func (s *story) ask(ctx context.Context, messages []message, tokens int) (a answer, err error) {
	resp, err := s.post(ctx, messages, tokens, false)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		return a, err
	}
	if len(a.Choices) == 0 {
		return a, errors.New("an answer without a choice")
	}
	return a, nil
}

// stream reads a streamed answer to its end. It closes begun at its first event.
func (s *story) stream(ctx context.Context, begun chan struct{}) error {
	resp, err := s.post(ctx, s.talk, s.engines.answer, true)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		return err
	}
	close(begun)
	rest, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("the answer was cut: %w", err)
	}
	if !bytes.Contains(rest, []byte("data: [DONE]")) {
		return errors.New("the answer was cut")
	}
	return nil
}
