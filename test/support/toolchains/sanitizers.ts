// The sanitized builds: their folders, the environment of their programs, and their reports. A report must fail the run
// even if no test looks at the process that wrote it, so reports go to files.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const NATIVE = join(import.meta.dirname, '../../../native');
export const ASAN_BUILD = join(NATIVE, 'build/asan');
export const TSAN_BUILD = join(NATIVE, 'build/tsan');

/** Present in each runtime's report. A file without it only says that threads were gone before the leak check. */
const FINDING = /ERROR: |WARNING: |runtime error: |SUMMARY: /;

export type Sanitizing = {
  readonly env: Readonly<Record<string, string>>;
  /** Every report written so far, as text; removes the folder. */
  reports(): string[];
};

/** AddressSanitizer and UndefinedBehaviorSanitizer for all native tests; ThreadSanitizer for those that ask for it. */
export function sanitizing(): Sanitizing {
  const folder = mkdtempSync(join(tmpdir(), 'ct-reports-'));
  const runtime = realpathSync(execFileSync('gcc', ['-print-file-name=libasan.so'], { encoding: 'utf8' }).trim());
  const log = `log_path=${join(folder, 'report')}`;
  return {
    env: {
      COTENANT_BUILD: ASAN_BUILD,
      COTENANT_SANITIZER_PRELOAD: runtime,
      // Instrumented processes start slowly, so a storm of fixed length kills fewer of them.
      COTENANT_STORM_SHARE: '0.25',
      // A bus error comes from a file that a tenant truncated and ends its process: not a finding.
      ASAN_OPTIONS: `${log}:handle_sigbus=0:strict_string_checks=1:check_initialization_order=1`,
      UBSAN_OPTIONS: `${log}:print_stacktrace=1`,
      TSAN_OPTIONS: `${log}:second_deadlock_stack=1`,
    },
    reports() {
      const found = readdirSync(folder).map((name) => readFileSync(join(folder, name), 'utf8'));
      rmSync(folder, { recursive: true, force: true });
      return found.filter((text) => FINDING.test(text));
    },
  };
}
