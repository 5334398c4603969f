// Fetches large packages before the tests, whose timeout a download would exceed. The tests report what cannot be
// fetched.
import { wheels } from './wheels.ts';

wheels();
