// Builds for arm64 and lays out what the tests of this layer run: the simulated node itself is this machine's, programs
// and libraries are arm64's. Where the compiler and the emulator cannot be had, the layer's tests skip and say why.
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { ARM64_BUILD, arm64, EMULATED_BUILD, UNAVAILABLE } from '../support/toolchains/arm64.ts';

const native = join(import.meta.dirname, '../../native');
/** The node itself, and what writes files as the agent would. */
const OF_THIS_MACHINE = ['cotenant-simulator', 'tests/grant'];
const SHARED_OBJECT = 3;
const INTERPRETER = 3;

function make(args: readonly string[], env: Readonly<Record<string, string>> = {}): boolean {
  const all = ['-C', native, '--no-print-directory', '--silent', '-j2', ...args];
  return spawnSync('make', all, { stdio: 'inherit', env: { ...process.env, ...env } }).status === 0;
}

/** A program rather than a library: it names its loader. */
function isProgram(path: string): boolean {
  const bytes = readFileSync(path);
  if (bytes.length < 64 || bytes.readUInt32BE(0) !== 0x7f454c46 || bytes.readUInt16LE(16) !== SHARED_OBJECT)
    return false;
  const [table, size, count] = [Number(bytes.readBigUInt64LE(32)), bytes.readUInt16LE(54), bytes.readUInt16LE(56)];
  return Array.from({ length: count }, (_, i) => bytes.readUInt32LE(table + i * size)).includes(INTERPRETER);
}

const tools = arm64();
rmSync(EMULATED_BUILD, { recursive: true, force: true });
mkdirSync(EMULATED_BUILD, { recursive: true });
if (!tools.ok) {
  writeFileSync(UNAVAILABLE, tools.reason);
  process.exit(0);
}
const built =
  make(['build/launcher', ...OF_THIS_MACHINE.map((name) => `build/${name}`)]) &&
  make([...tools.make, 'OUT=build/arm64', 'emulated'], tools.env);
if (!built) process.exit(1);

const args = Object.entries(tools.env).map(([name, value]) => `${name}='${value}'`);
writeFileSync(join(EMULATED_BUILD, 'cc'), `#!/bin/sh\n${args.join(' ')} exec '${tools.compiler.join("' '")}' "$@"\n`, {
  mode: 0o755,
});
symlinkSync(tools.emulator, join(EMULATED_BUILD, 'emulator'));
symlinkSync(tools.prefix, join(EMULATED_BUILD, 'prefix'));
for (const name of readdirSync(ARM64_BUILD, { recursive: true, encoding: 'utf8' })) {
  const [from, to] = [join(ARM64_BUILD, name), join(EMULATED_BUILD, name)];
  if (name.startsWith('o/') || name.endsWith('.d') || !statSync(from).isFile()) continue;
  mkdirSync(dirname(to), { recursive: true });
  if (OF_THIS_MACHINE.includes(name)) copyFileSync(join(native, 'build', name), to);
  else if (isProgram(from)) copyFileSync(join(native, 'build/launcher'), to);
  else symlinkSync(from, to);
}
for (const name of OF_THIS_MACHINE.filter((one) => !existsSync(join(EMULATED_BUILD, one))))
  throw new Error(`${name} was not built`);
