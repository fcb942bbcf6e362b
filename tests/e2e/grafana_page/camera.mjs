// node camera.mjs CHROMIUM URL PICTURE WIDTH: waits for the page's report, takes the picture, prints the report as JSON.
import { chromium } from 'playwright-core';

const [, , executablePath, url, picture, width] = process.argv;
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
try {
  const page = await browser.newPage({ viewport: { width: Number(width), height: 1000 }, timezoneId: 'UTC' });
  const crashed = [];
  page.on('pageerror', (err) => crashed.push(String(err)));
  await page.goto(url);
  await page.waitForFunction(() => window.pageReport, null, { timeout: 120000 });
  const report = await page.evaluate(() => window.pageReport);
  await page.screenshot({ path: picture, fullPage: true });
  console.log(JSON.stringify({ ...report, errors: [...report.errors, ...crashed] }));
} finally {
  await browser.close();
}
