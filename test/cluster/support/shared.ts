// Tests of one file that share a test cluster with all of Cotenant installed.
import test, { type ExecutionContext, type ImplementationFn } from 'ava';
import { BUILD_MS } from '../../support/services/helm.ts';
import { pythonClients } from '../../support/toolchains/python.ts';
import { addNvmlImage } from '../bed/product.ts';
import { startWhole, WHOLE_VALUES, type Whole, wholeTools } from '../bed/whole.ts';

const tools = wholeTools(console.log);
const clients = pythonClients();
const whyNot = !tools.ok ? tools.reason : clients.ok ? undefined : clients.reason;

/** Serial tests, skipped with the reason where there can be no such cluster. `values`: chart values other than the
 * usual. */
export function testsOnWhole(
  gpus: readonly string[],
  values: object = {},
): (title: string, body: (t: ExecutionContext, whole: Whole) => Promise<void>) => void {
  let whole: Whole | undefined;
  if (whyNot === undefined) {
    test.before(async (t) => {
      t.timeout(BUILD_MS);
      if (!tools.ok) return;
      whole = await startWhole(tools, gpus, (line) => t.log(line), { ...WHOLE_VALUES, ...values });
      addNvmlImage(whole.bed);
    });
    test.after.always(async () => {
      await whole?.bed.close();
    });
  }
  return (title, body) => {
    const run: ImplementationFn<[]> = async (t) => {
      t.timeout(BUILD_MS);
      if (whole === undefined) throw new Error('the bed did not come up');
      await body(t, whole);
    };
    if (whyNot === undefined) test.serial(title, run);
    else test.skip(`${title} (skipped: ${whyNot})`, run);
  };
}
